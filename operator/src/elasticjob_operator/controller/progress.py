"""What happens when a job reports progress and nothing else: no plan, and writes within budgets of the fleet."""

from __future__ import annotations

from elasticjob_api import ConditionType

from elasticjob_operator import metrics
from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.controller.progress_lane import ProgressLane
from elasticjob_operator.controller.work_queue import WorkQueue
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.settings import Settings

STATUS_PAUSE = 1.0
"""Between two writes of a job's status for its progress alone, s."""


class ProgressWriter:
    """`run` until cancelled."""

    def __init__(self, settings: Settings, jobs: JobCache, queue: WorkQueue[NamespacedName]) -> None:
        self._jobs = jobs
        self._queue = queue
        self._granted: set[NamespacedName] = set()
        """Jobs whose next reconciliation may write the status for progress alone."""
        self.statuses = ProgressLane(settings.progress_status_writes, self._reconcile, pause=STATUS_PAUSE)

    def on_report(self, key: NamespacedName) -> None:
        """The agents reported progress and nothing else."""
        if self._jobs.is_true(key, ConditionType.STALLED):
            self._queue.add(key)  # it goes on
        else:
            self.statuses.add(key)

    def may_write_status(self, key: NamespacedName) -> bool:
        """Whether the status may be written for progress alone. If not, it may be later, and the job is then
        reconciled."""
        if key not in self._granted:
            self.statuses.add(key)
        return key in self._granted

    def on_status_written(self, key: NamespacedName) -> None:
        self.statuses.on_written(key)

    def forget(self, key: NamespacedName) -> None:
        self.statuses.forget(key)

    def count(self) -> None:
        for name, lane in (("status", self.statuses),):
            metrics.PROGRESS_WAITING.labels(name).set_function(lambda lane=lane: len(lane))  # type: ignore[misc]
            metrics.PROGRESS_AGE.labels(name).set_function(lambda lane=lane: lane.age)  # type: ignore[misc]

    async def _reconcile(self, key: NamespacedName) -> None:
        """The status with its progress is decided and written where all statuses are."""
        self._granted.add(key)
        try:
            await self._queue.add_aside(key)
        finally:
            self._granted.discard(key)
