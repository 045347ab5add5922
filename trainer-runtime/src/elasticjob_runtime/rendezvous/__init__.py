"""One member's part in the rendezvous: what it knows of the others, how it writes to the store, how it is reached. No
decisions: those are membership's."""
