"""What happens when the watch reports an ElasticJob: it is cached and requeued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elasticjob_operator import metrics
from elasticjob_operator.controller.job_cache import JobCache, key_of
from elasticjob_operator.controller.resync import Resync
from elasticjob_operator.controller.work_queue import WorkQueue
from elasticjob_operator.names import NamespacedName


class JobEvents:
    """Callbacks of the watch of ElasticJobs. `leads(key)`: whether this operator counts the restarts of the job."""

    def __init__(
        self,
        jobs: JobCache,
        queue: WorkQueue[NamespacedName],
        resync: Resync,
        leads: Callable[[NamespacedName], bool] = lambda _: True,
    ) -> None:
        self._leads = leads
        self._jobs = jobs
        self._queue = queue
        self._resync = resync
        self._restarts = metrics.Restarts()

    def changed(self, body: Mapping[str, Any], *, listed: bool = False) -> None:
        """A job was added or modified, or `listed` when the watch began: nothing has happened to it then that is
        known."""
        key = key_of(body)
        is_first = not listed or bool(self._jobs.uid(key))
        self._resync.on_watch_event(key)
        self._restarts.see(body, count=self._leads(key))
        if self._jobs.put(body):
            (self._queue.add if is_first else self._queue.add_later)(key)

    def deleted(self, body: Mapping[str, Any]) -> None:
        key = key_of(body)
        self._resync.on_watch_event(key)
        self._restarts.forget(body)
        if self._jobs.remove(key, body["metadata"]["uid"]):
            self._queue.add(key)

    def restarted(self) -> None:
        """The watch was restarted. It lists the existing jobs, but not those deleted in the meantime."""
        self._resync.on_watch_restarted()
