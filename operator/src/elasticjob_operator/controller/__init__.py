"""The reconciler (observe, plan, apply, write status), the work queue that drives it, and the cache of jobs."""

from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.controller.job_events import JobEvents
from elasticjob_operator.controller.progress import ProgressWriter
from elasticjob_operator.controller.reconciler import Reconciler
from elasticjob_operator.controller.resync import Resync
from elasticjob_operator.controller.work_queue import WorkQueue

__all__ = ["JobCache", "JobEvents", "ProgressWriter", "Reconciler", "Resync", "WorkQueue"]
