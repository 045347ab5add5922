"""The operator's side of the rendezvous: one session with etcd for each job that needs one. Beside `cluster`, the only
I/O."""

from elasticjob_operator.etcd.run_watches import RunWatches

__all__ = ["RunWatches"]
