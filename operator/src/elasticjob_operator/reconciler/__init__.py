"""One loop for each job: observe, plan, apply, write status. A keyed queue says when."""

from elasticjob_operator.reconciler.audit import Audit
from elasticjob_operator.reconciler.jobs import Jobs, key_of
from elasticjob_operator.reconciler.queue import KeyedQueue
from elasticjob_operator.reconciler.reconciler import Reconciler

__all__ = ["Audit", "Jobs", "KeyedQueue", "Reconciler", "key_of"]
