"""The merged log of a job's worker pods."""

from __future__ import annotations

import heapq
import queue
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from elasticjob.cluster.objects import Cluster
from elasticjob.cluster.pod_logs import PodLog, Selection, read_log
from elasticjob.decisions.log_lines import WINDOW, Line, Merger
from elasticjob.decisions.log_selection import choose_workers
from elasticjob.decisions.waiting import waits_for
from elasticjob.errors import NotFoundError
from elasticjob.sdk.watch import JobWatch, Snapshot
from elasticjob.state import JobState, WorkerState, job_state, worker_states

if TYPE_CHECKING:
    from elasticjob.cluster.http import Json

JOINED_SECONDS = 2
"""How far back the log of a pod is read that takes over the rank of a lost one, s."""


LOOK_SECONDS = 1.0
"""Without news, the job is looked at again after this time, s."""


def read_logs(
    cluster: Cluster, name: str, namespace: str, *, rank: int | None, everything: bool, selection: Selection
) -> Iterator[Line]:
    """The lines up to now, oldest first. Raises ElasticJobError."""
    job = job_state(cluster.job(name, namespace))
    pods = cluster.workers(name, namespace)
    chosen = {each.uid for each in choose_workers(job, worker_states(pods), rank=rank, everything=everything)}
    logs = [read_log(cluster.api, pod, job.container, selection) for pod in pods if pod["metadata"]["uid"] in chosen]
    yield from heapq.merge(*logs, key=lambda line: line.at)


class LogFollower:
    """Follows the logs of a job until it has finished, whichever of its worker pods are replaced."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        namespace: str,
        *,
        rank: int | None,
        everything: bool,
        selection: Selection,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`notify`: called when the API server goes away, or the job is suspended or deleted."""
        self._cluster, self._rank, self._everything = cluster, rank, everything
        self._selection, self._notify = selection, notify
        self._watch = JobWatch(cluster, name, namespace, workers=True)
        self._logs: dict[str, PodLog] = {}
        self._lines: queue.Queue[Line] = queue.Queue()
        self._said = ""
        self._deleted = False

    def __iter__(self) -> Iterator[Line]:
        """Raises ElasticJobError. Ends when the job has finished and its logs have been read, or it was deleted."""
        merger = Merger()
        try:
            over, looked = False, 0.0
            while True:
                if self._watch.has_changed() or time.monotonic() > looked + LOOK_SECONDS:
                    over, looked = self._follow_pods(self._watch.snapshot()), time.monotonic()
                for line in self._arrived(WINDOW / 2):
                    merger.add(line, time.monotonic())
                yield from merger.ready(time.monotonic())
                if over and self._lines.empty() and all(each.ended for each in self._logs.values()):
                    yield from merger.rest()
                    return
        finally:
            self.close()

    def close(self) -> None:
        self._watch.close()
        for each in self._logs.values():
            each.close()

    @property
    def deleted(self) -> bool:
        """Whether it ended because the job was deleted."""
        return self._deleted

    def _arrived(self, timeout: float) -> Iterator[Line]:
        """Waits for the first line."""
        try:
            yield self._lines.get(timeout=timeout)
            while True:
                yield self._lines.get_nowait()
        except queue.Empty:
            return

    def _follow_pods(self, now: Snapshot) -> bool:
        """Opens the logs of new worker pods. Returns whether no more will come."""
        pods = {each["metadata"]["uid"]: each for each in self._watch.pods()}
        if now.job is not None:
            for worker in self._chosen(now.job, now.workers):
                self._open(worker, pods[worker.uid], now.job.container)
        for uid, log in self._logs.items():
            pod = pods.get(uid)
            if pod is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                log.gone = True
            if log.error is not None:
                raise log.error
        self._say(now)
        self._deleted = now.job is None
        return now.job is None or now.job.is_finished

    def _chosen(self, job: JobState, workers: list[WorkerState]) -> list[WorkerState]:
        try:
            return choose_workers(job, workers, rank=self._rank, everything=self._everything)
        except NotFoundError:  # the rank comes back with the next worker pod
            if not job.is_finished or self._logs:
                return []
            raise

    def _open(self, worker: WorkerState, pod: Json, container: str) -> None:
        if worker.uid in self._logs or (worker.phase == "Pending" and not worker.deleting):
            return
        took_over = self._rank is not None and bool(self._logs)
        selection = Selection(since_seconds=JOINED_SECONDS) if took_over and worker.ready else self._selection
        if self._logs and not took_over:
            selection = Selection()  # a new worker pod: all of it
        for uid, log in self._logs.items():
            if took_over and uid != worker.uid:
                log.gone = True
        self._logs[worker.uid] = PodLog(self._cluster.api, pod, container, selection, self._lines, self._watch.wake)

    def _say(self, now: Snapshot) -> None:
        """Tells each thing once."""
        said = ""
        if now.lost_for > 1:
            said = "The API server cannot be reached; trying again."
        elif now.job is None:
            said = "The job was deleted."
        elif now.job.is_true("Suspended"):
            said = f"{now.job.name} is suspended; waiting until it is resumed."
        elif not self._logs and not now.job.is_finished and self._watch.knows_workers:
            said = f"Waiting for worker pods: {waits_for(now.job)}"
        if said and said != self._said:
            self._notify(said)
        if self._said.startswith("The API server") and not said:
            self._notify("The API server is back.")
        self._said = said
