"""The logs of a job's worker pods: merged by time, or followed."""

from __future__ import annotations

import contextlib
import heapq
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from elasticjob.cluster.objects import Cluster
from elasticjob.cluster.pod_logs import PodLog, read_log
from elasticjob.decisions.log_lines import Line
from elasticjob.decisions.log_selection import MOST_STREAMS, Selection, choose_workers
from elasticjob.decisions.waiting import waits_for
from elasticjob.errors import ElasticJobError, NotFoundError
from elasticjob.sdk.watch import JobWatch, Snapshot
from elasticjob.state import JobState, WorkerState, job_state, worker_states

if TYPE_CHECKING:
    from elasticjob.cluster.http import Json

JOINED_SECONDS = 2
"""How far back the log of a pod is read that takes over the rank of a lost one, s."""
LOOK_SECONDS = 1.0
"""Without news, the job is looked at again after this time, s."""
WAIT_SECONDS = 0.15
"""For a line, before the job is looked at, s."""
MOST_LINES = 1000
"""Before the job is looked at."""


def read_logs(
    cluster: Cluster, name: str, namespace: str, selection: Selection, notify: Callable[[str], None]
) -> Iterator[Line]:
    """The lines up to now, oldest first. Raises ElasticJobError, if only some can be read after their lines.

    `notify`: called with the names of worker pods that have not started.
    """
    job = job_state(cluster.job(name, namespace))
    pods = {worker["metadata"]["uid"]: worker for worker in cluster.workers(name, namespace)}
    if not pods:
        raise NotFoundError(
            f"{name} has no worker pods, so there is no log.",
            f"Its last failure and its history are kept: elasticjob describe {name}",
        )
    failed: list[ElasticJobError] = []

    def read(pod: WorkerState) -> Iterator[Line]:
        if pod.phase == "Pending":
            notify(f"{pod.name} has not started, so it has no log yet.")
            return
        try:
            yield from read_log(cluster.api, pods[pod.uid], selection.container or job.container, selection)
        except NotFoundError:  # it is gone
            return
        except ElasticJobError as error:
            failed.append(error)

    chosen = choose_workers(job, worker_states(pods.values()), selection)
    yield from heapq.merge(*map(read, chosen), key=lambda line: line.at)
    if failed:
        raise failed[0]


def together(logs: Sequence[Iterable[Line]]) -> Iterator[Line]:
    """The lines of several jobs as they come. Raises the first ElasticJobError, after the lines of the others."""
    arrived: queue.Queue[Line | ElasticJobError | None] = queue.Queue(MOST_LINES)

    def read(log: Iterable[Line]) -> None:
        try:
            for line in log:
                arrived.put(line)
            arrived.put(None)
        except ElasticJobError as error:
            arrived.put(error)

    for log in logs:
        threading.Thread(target=read, args=[log], daemon=True).start()
    ended: list[ElasticJobError | None] = []
    while len(ended) < len(logs):
        item = arrived.get()
        if isinstance(item, Line):
            yield item
        else:
            ended.append(item)
    for error in filter(None, ended):
        raise error


class LogFollower:
    """Follows the logs of a job until it has finished, whichever of its worker pods are replaced."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        namespace: str,
        selection: Selection,
        notify: Callable[[str], None],
        *,
        timeout: float | None = None,
    ) -> None:
        """`notify`: called when the API server goes away, or the job is suspended or deleted. `timeout`: follows no
        longer than this, s."""
        self._cluster, self._selection, self._notify = cluster, selection, notify
        self._moves = selection.rank is not None or selection.replica is not None
        """Whether what is followed may move to other worker pods."""
        self._all = selection.everything or self._moves or selection.is_of_one
        """Whether there are never more worker pods to follow than are wanted."""
        self._missing = ""
        """Why nothing is chosen."""
        self._end = float("inf") if timeout is None else time.monotonic() + timeout
        self._watch = JobWatch(cluster, name, namespace, workers=True)
        self._logs: dict[str, PodLog] = {}
        self._lines: queue.Queue[Line] = queue.Queue()
        self._began = False
        """Whether the worker pods that were there at the start are known."""
        self._said = ""
        self.deleted = False
        """Whether it ended because the job was deleted."""

    def __iter__(self) -> Iterator[Line]:
        """Lines in the order in which they arrive: the clocks of nodes differ, and none waits for another.

        Raises ElasticJobError. Ends when the job has finished and its logs have been read, or it was deleted.
        """
        try:
            over, looked = False, 0.0
            while time.monotonic() < self._end:
                if self._watch.has_changed() or time.monotonic() > looked + LOOK_SECONDS:
                    over, looked = self._follow_pods(), time.monotonic()
                yield from self._arrived(WAIT_SECONDS)
                if over and self._lines.empty() and all(log.ended for log in self._logs.values()):
                    return
        finally:
            self.close()

    def close(self) -> None:
        self._watch.close()
        for log in self._logs.values():
            log.close()

    def _arrived(self, timeout: float) -> Iterator[Line]:
        """Waits for the first line. Few enough that new worker pods are noticed, however much the others print."""
        with contextlib.suppress(queue.Empty):
            yield self._lines.get(timeout=timeout)
            for _ in range(MOST_LINES):
                yield self._lines.get_nowait()

    def _follow_pods(self) -> bool:
        """Opens the logs of new worker pods. Returns whether no more will come."""
        listed, now = self._watch.knows_workers, self._watch.snapshot()
        pods = {pod["metadata"]["uid"]: pod for pod in self._watch.pods()}
        if now.job is not None:
            chosen = self._chosen(now.job, now.workers)
            for worker in chosen:
                if worker.uid in pods:
                    self._open(worker, pods[worker.uid], self._selection.container or now.job.container)
            if self._moves and any(worker.uid in self._logs for worker in chosen):
                for uid in self._logs.keys() - {worker.uid for worker in chosen}:
                    self._logs[uid].gone = True
        self._began = self._began or listed
        for uid, log in self._logs.items():
            pod = pods.get(uid)
            if pod is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                log.gone = True
            if log.error is not None:
                raise log.error
        self._say(now)
        self.deleted = now.job is None
        return listed and (now.job is None or now.job.is_finished)

    def _chosen(self, job: JobState, workers: list[WorkerState]) -> list[WorkerState]:
        if self._began and not self._all:
            return workers[:MOST_STREAMS]  # `_say` tells of the others
        self._missing = ""
        try:
            return choose_workers(job, workers, self._selection)
        except NotFoundError as error:  # the rank or index comes back with the next worker pod
            if not job.is_finished or self._logs:
                self._missing = str(error)
                return []
            raise

    def _open(self, worker: WorkerState, pod: Json, container: str) -> None:
        if worker.uid in self._logs or (worker.phase == "Pending" and not worker.deleting):
            return
        took_over = self._moves and bool(self._logs) and self._began
        selection = Selection(since_seconds=JOINED_SECONDS) if took_over and worker.ready else self._selection
        if self._began and not took_over:
            selection = Selection()  # a new worker pod: all of it
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
            said = f"Waiting for worker pods: {(now.workers and self._missing) or waits_for(now.job)}"
        elif len(now.workers) > MOST_STREAMS and not self._all:
            said = f"{len(now.workers)} worker pods: following the first {MOST_STREAMS}, and all of them with --all."
        if said and said != self._said:
            self._notify(said)
        if self._said.startswith("The API server") and not said:
            self._notify("The API server is back.")
        self._said = said
