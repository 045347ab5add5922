"""One member's side of the rendezvous: its view of the store, its writes, its connections to peers. It makes no
decisions; those are in `membership`."""
