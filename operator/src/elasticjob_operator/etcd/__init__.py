"""The operator's side of the rendezvous: what it reads from and writes to the etcd of each job. Besides `kube`, the
operator's only I/O."""

from elasticjob_operator.etcd.run_watches import RunWatches, set_aside_key
from elasticjob_operator.etcd.tiers import Tiers
from elasticjob_operator.etcd.users import RunUsers

__all__ = ["RunUsers", "RunWatches", "Tiers", "set_aside_key"]
