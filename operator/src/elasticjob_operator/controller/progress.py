"""What happens when a job reports progress and nothing else: no plan, and writes within budgets of all jobs.

The status of the job has the progress, if its turn comes soon. Otherwise, an ElasticJobProgress beside the job has what
is newer: its write costs the API server a third, so more of them are affordable.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable

from elasticjob_api import ConditionType

from elasticjob_operator import metrics
from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.controller.progress_lane import ProgressLane
from elasticjob_operator.controller.work_queue import WorkQueue
from elasticjob_operator.kube import Cluster, NotFoundError, RejectedError, writing_about
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.policies.progress import newest_progress
from elasticjob_operator.policies.stalling import later
from elasticjob_operator.resources.progress import progress_object
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import RendezvousView

log = logging.getLogger(__name__)

STATUS_PAUSE = 1.0
"""Between two writes of a job's status for its progress alone, s."""
OBJECT_WAIT, OBJECT_PAUSE = 2.0, 5.0
"""How long progress waits for the status before it goes into the object; between two writes of an object; s."""
LOOK_SECONDS = 1.0
"""Between two looks for jobs whose training may have stalled."""
REFUSED_SECONDS = 60.0
"""How long no object is written in a namespace after the API server has refused one, as without their CRD or the right
to write them."""


class ProgressWriter:
    """`statuses` and `objects` are to be run. `view`: what the agents of a job have reported."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobCache,
        queue: WorkQueue[NamespacedName],
        cluster: Cluster,
        view: Callable[[NamespacedName], RendezvousView],
    ) -> None:
        self._jobs = jobs
        self._queue = queue
        self._cluster = cluster
        self._view = view
        self._granted: set[NamespacedName] = set()
        """Jobs whose next reconciliation may write the status for progress alone."""
        self._refused: dict[str, float] = {}
        """By namespace, when an object was refused (monotonic, s)."""
        self._stalls_at: dict[NamespacedName, datetime.datetime] = {}
        """When to look whether the training of a job has stalled."""
        self._settings = settings
        self.statuses = ProgressLane(settings.progress_status_writes, self._reconcile, pause=STATUS_PAUSE)
        self.objects = ProgressLane(settings.progress_writes, self._write, pause=OBJECT_PAUSE, wait=OBJECT_WAIT)

    def set_share(self, share: float) -> None:
        """What part of the budgets of all jobs is for this operator, from 0 to 1."""
        self.statuses.set_rate(share * self._settings.progress_status_writes)
        self.objects.set_rate(share * self._settings.progress_writes)

    def on_report(self, key: NamespacedName) -> None:
        """The agents reported progress and nothing else."""
        if self._jobs.is_true(key, ConditionType.STALLED):
            self._queue.add(key)  # it goes on
        else:
            self.statuses.add(key)
            self.objects.add(key)

    def expect(self, key: NamespacedName, stalls_at: datetime.datetime | None) -> None:
        """The job is to be reconciled then, unless its training goes on. None: not for that."""
        if stalls_at is None:
            self._stalls_at.pop(key, None)
        else:
            self._stalls_at[key] = stalls_at

    async def watch_stalls(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = datetime.datetime.now(datetime.timezone.utc)
            for key in [key for key, stalls_at in self._stalls_at.items() if stalls_at <= now]:
                if (stalls_at := later(self._view(key), now)) is not None:
                    self._stalls_at[key] = stalls_at
                else:
                    del self._stalls_at[key]
                    self._queue.add(key)

    def may_write_status(self, key: NamespacedName) -> bool:
        """Whether the status may be written for progress alone. If not, it may be later, and the job is then
        reconciled."""
        if key not in self._granted:
            self.statuses.add(key)
            self.objects.add(key)
        return key in self._granted

    def on_status_written(self, key: NamespacedName, decided_at: float) -> None:
        """`decided_at`: see ProgressLane."""
        self.statuses.on_written(key, decided_at)
        self.objects.on_written(key, decided_at)

    def forget(self, key: NamespacedName) -> None:
        self._stalls_at.pop(key, None)
        self.statuses.forget(key)
        self.objects.forget(key)

    def count(self) -> None:
        for name, lane in (("status", self.statuses), ("progress", self.objects)):
            metrics.PROGRESS_WAITING.labels(name).set_function(lambda lane=lane: len(lane))  # type: ignore[misc]
            metrics.PROGRESS_AGE.labels(name).set_function(lambda lane=lane: lane.age)  # type: ignore[misc]

    async def _reconcile(self, key: NamespacedName) -> None:
        """The status with its progress is decided and written where all statuses are."""
        self._granted.add(key)
        try:
            await self._queue.add_aside(key)
        finally:
            self._granted.discard(key)

    async def _write(self, key: NamespacedName) -> None:
        """Raises ApiError or ConnectionError."""
        namespace, uid = key[0], self._jobs.uid(key)
        found = newest_progress(self._view(key), datetime.datetime.now(datetime.timezone.utc))
        refused_at = self._refused.get(namespace)
        if found is None or not uid or (refused_at is not None and time.monotonic() - refused_at < REFUSED_SECONDS):
            return
        try:
            with writing_about(key):
                await self._cluster.write_progress(progress_object(key, uid, found))
        except (NotFoundError, RejectedError) as error:
            self._refused[namespace] = time.monotonic()
            log.info("No ElasticJobProgress is written in namespace %s for a minute: %s", namespace, error)
        else:
            self._refused.pop(namespace, None)
