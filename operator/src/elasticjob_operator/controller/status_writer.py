"""Writes the status of jobs, throttled and never over a newer version, and records the Events of each change.

Where nothing but progress is new, the write waits for the budget of all jobs (`progress`), and the status is decided
again then.

A status that is decided but not written yet is kept in memory. If it is lost, it is decided again (see
status_throttle).
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Iterable

from elasticjob_api import ElasticJob, Status

from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.controller.job_log import about
from elasticjob_operator.controller.progress import ProgressWriter
from elasticjob_operator.controller.status_throttle import as_written, conflict_delay, seconds_to_hold
from elasticjob_operator.controller.work_queue import WorkQueue
from elasticjob_operator.kube import Cluster, EventRecorder
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import JobEvent, Plan
from elasticjob_operator.policies.progress import only_progress_changed

log = logging.getLogger(__name__)

MOST_WRITES = 2**31
"""`status.writes` starts again then. All that matters is that it changes, and someone may have written any number."""


@dataclasses.dataclass(slots=True)
class _Memory:
    """What is remembered of a job between two writes."""

    status: Status | None = None
    """The pending status: decided, but not written yet."""
    base: Status | None = None
    """The written status from which `status` was decided."""
    since: float = 0.0
    """Monotonic time since which a status is pending, s."""
    events: tuple[JobEvent, ...] = ()
    """Events of `status`."""
    written_at: float = float("-inf")
    """Monotonic time of the last write, s."""
    conflicts: int = 0
    """Consecutive writes that failed because the job had changed."""
    recorded_version: str = ""
    recorded: collections.Counter[JobEvent] = dataclasses.field(default_factory=collections.Counter)
    """How often each Event was recorded at that version of the job."""


class StatusWriter:
    """`write` is called concurrently for different keys, never for the same key."""

    def __init__(
        self,
        jobs: JobCache,
        cluster: Cluster,
        recorder: EventRecorder,
        queue: WorkQueue[NamespacedName],
        progress: ProgressWriter,
    ) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._recorder = recorder
        self._queue = queue
        self._progress = progress
        self._memories: dict[NamespacedName, _Memory] = {}

    def with_pending(self, key: NamespacedName, job: ElasticJob) -> ElasticJob:
        """`job` with its pending status, if there is one."""
        memory = self._memories.get(key)
        if memory is None or memory.status is None:
            return job
        if memory.base != job.status:
            memory.status = None  # another operator, such as the previous leader, wrote the status: it takes precedence
            return job
        return job.model_copy(update={"status": memory.status})

    def forget(self, key: NamespacedName) -> None:
        self._memories.pop(key, None)
        self._progress.forget(key)

    async def write(
        self,
        key: NamespacedName,
        uid: str,
        version: str,
        written: Status,
        planned: Plan,
        *,
        decided_at: float,
        done: bool = False,
    ) -> None:
        """Writes the planned status now or later, and records the Events after it. `uid`, `version`, `written`: of the
        job that was planned for; `decided_at`: when it was observed for the plan (monotonic, s); `done`: this
        reconciliation created or deleted something.

        Raises ApiError or ConnectionError.
        """
        memory = self._memories.setdefault(key, _Memory())
        events = tuple(dict.fromkeys(memory.events + planned.events))
        held = only_progress_changed(written, planned.status) and not self._progress.may_write_status(key)
        if planned.status != written and not held:
            now = time.monotonic()
            since = memory.since if memory.status is not None else now
            seconds = seconds_to_hold(written, planned.status, now - memory.written_at, done=done, held=now - since)
            if seconds > 0:
                memory.status, memory.base = as_written(planned.status), written
                memory.events, memory.since = events, since
                self._queue.add_at(key, asyncio.get_running_loop().time() + seconds)
                return
            memory.events = events  # kept if the write fails
            counted = planned.status.model_copy(update={"writes": (written.writes + 1) % MOST_WRITES})
            if not await self._send(key, uid, version, counted, memory):
                return
            self._progress.on_status_written(key, decided_at)
        memory.status, memory.events = None, ()
        self._record(key, uid, memory, events)

    async def _send(self, key: NamespacedName, uid: str, version: str, status: Status, memory: _Memory) -> bool:
        """Returns False if the job was deleted or has changed, so that nothing was written; it is then requeued."""
        if str(self._jobs.version(key)) != version:
            self._queue.add(key)  # changed during this reconciliation
            return False
        result = await self._cluster.write_status(key, uid, version, status.to_api())
        if result.job is None:
            log.info("The job was deleted", extra=about(key))
            self._jobs.remove(key, uid)
            self._queue.add(key)
            return False
        generation = self._jobs.generation(key)
        self._jobs.put(result.job)
        if not result.written:
            delay = conflict_delay(memory.conflicts)
            memory.conflicts += 1
            log.info(
                "The job changed before its status was written, reconciling again in %.2f s", delay, extra=about(key)
            )
            self._queue.add_at(key, asyncio.get_running_loop().time() + delay)
            return False
        memory.written_at, memory.conflicts = time.monotonic(), 0
        if generation != self._jobs.generation(key):
            self._queue.add(key)  # the watch will deliver that spec change as a known version
        return True

    def _record(self, key: NamespacedName, uid: str, memory: _Memory, events: Iterable[JobEvent]) -> None:
        version = str(self._jobs.version(key))
        if memory.recorded_version != version:
            memory.recorded_version = version
            memory.recorded.clear()
        for event in events:
            log.info("%s: %s", event.reason.value, event.message, extra=about(key, event.reason.value))
            again = memory.recorded[event]  # the same action again, without a status write in between
            memory.recorded[event] += 1
            self._recorder.record(*key, uid, f"{version}.{again}" if again else version, event)
