"""A job and its worker pods, kept up to date for as long as someone waits for it or looks at it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticjob.cluster.objects import Cluster
from elasticjob.cluster.watching import Watched
from elasticjob.decisions.waiting import Target, WaitOutcome, wait_result, why_failed, worth_a_line
from elasticjob.errors import (
    ElasticJobError,
    JobDeletedError,
    JobFailedError,
    WaitTimeoutError,
)
from elasticjob.names import worker_selector
from elasticjob.state import JobState, WorkerState, in_index_order, job_state, with_progress, worker_state

if TYPE_CHECKING:
    from typing import Self

    from elasticjob.cluster.http import Json

LONGEST_PAUSE = 5.0
"""Without news, those who wait are told again what for after this time, s."""


@dataclass(frozen=True)
class Snapshot:
    """What is known at one moment."""

    job: JobState | None
    """None: it was deleted."""
    workers: list[WorkerState]
    lost_for: float = 0.0
    """How long the API server has not answered, s."""


class JobWatch:
    """Watches one job, by its UID, and if wanted its worker pods. A context manager.

    Raises NotFoundError at the start if there is no job of this name.
    """

    def __init__(self, cluster: Cluster, name: str, namespace: str | None = None, *, workers: bool = False) -> None:
        self._cluster, self._name = cluster, name
        self._namespace = namespace or cluster.namespace
        first = cluster.job(name, self._namespace)
        self.uid: str = first["metadata"]["uid"]
        self._changed = threading.Event()
        self.first = first
        path = cluster.jobs_path(self._namespace)
        self._job = Watched(cluster.api, path, self._changed.set, fieldSelector=f"metadata.name={name}")
        self._pods: Watched | None = None
        self._progress: Watched | None = None
        self._states: dict[str, tuple[str, WorkerState]] = {}
        if workers:
            pods = cluster.pods_path(self._namespace)
            self._pods = Watched(cluster.api, pods, self._changed.set, labelSelector=worker_selector(name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow_progress(self) -> None:
        """Watches the ElasticJobProgress too, if it may be read."""
        path, field = self._cluster.progress_path(self._namespace), f"metadata.name={self._name}"
        self._progress = Watched(self._cluster.api, path, self._changed.set, fieldSelector=field)

    def close(self) -> None:
        for stream in (*self._watched(), *([self._progress] if self._progress else [])):
            stream.close()

    def wait_for_change(self, timeout: float) -> None:
        """Returns at once if something has changed since the last call."""
        self._changed.wait(timeout)
        self._changed.clear()

    def has_changed(self) -> bool:
        """Whether something has changed since the last call of this or `wait_for_change`."""
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    def wake(self) -> None:
        """Ends `wait_for_change` from another thread."""
        self._changed.set()

    def body(self) -> Json | None:
        """The job as the API server has it; None if it was deleted."""
        if not self._job.listed:
            return self.first
        return next((item for item in self._job.objects() if item["metadata"]["uid"] == self.uid), None)

    def newest(self, body: Json) -> Json:
        """The job with the newest progress."""
        for beside in self._progress.objects() if self._progress else []:
            body = dict(with_progress(body, beside))
        return body

    @property
    def knows_workers(self) -> bool:
        """Whether the worker pods have been listed."""
        return self._pods is not None and self._pods.listed

    def pods(self) -> list[Json]:
        """Its worker pods; those of a later job of the same name are left out."""
        found = self._pods.objects() if self._pods else []
        return [manifest for manifest in found if self._is_ours(manifest)]

    def snapshot(self) -> Snapshot:
        """Raises the error that makes watching impossible."""
        for stream in self._watched():
            if stream.error is not None:
                raise stream.error
        body = self.body()
        return Snapshot(None if body is None else job_state(self.newest(body)), self._worker_states(), self.lost_for())

    def lost_for(self) -> float:
        """How long the API server has not answered, s."""
        lost = [stream.lost_since for stream in self._watched() if stream.lost_since is not None]
        return time.monotonic() - min(lost) if lost else 0.0

    def _worker_states(self) -> list[WorkerState]:
        """Reads only the pods that have changed: there may be a thousand."""
        pods = {pod["metadata"]["uid"]: pod for pod in self.pods()}
        for uid, pod in pods.items():
            version = pod["metadata"]["resourceVersion"]
            if self._states.get(uid, ("",))[0] != version:
                self._states[uid] = (version, worker_state(pod))
        self._states = {uid: self._states[uid] for uid in pods}
        return in_index_order(state for _, state in self._states.values())

    def snapshots(self, pause: float = LONGEST_PAUSE) -> Iterator[Snapshot]:
        """One at once, one after each change, and one at least every `pause` s."""
        while True:
            yield self.snapshot()
            self.wait_for_change(pause)

    def _is_ours(self, pod: Json) -> bool:
        owners = pod["metadata"].get("ownerReferences") or []
        return not owners or any(owner.get("uid") == self.uid for owner in owners)

    def _watched(self) -> list[Watched]:
        return [self._job, *([self._pods] if self._pods else [])]


def changed_jobs(cluster: Cluster, namespace: str, names: Sequence[str], selector: str) -> Iterator[list[Json]]:
    """All jobs, then those that have changed, whenever some have; forever. `namespace`: "" for all. `names`: only
    these, if there are any."""
    changed, shown = threading.Event(), dict[str, str]()
    fields = f"metadata.name={names[0]}" if len(names) == 1 else ""
    watched = Watched(
        cluster.api, cluster.jobs_path(namespace), changed.set, labelSelector=selector, fieldSelector=fields
    )
    with contextlib.closing(watched):
        while True:
            changed.wait()
            changed.clear()
            if watched.error is not None:
                raise watched.error
            jobs = [item for item in watched.objects() if not names or item["metadata"]["name"] in names]
            versions = {job["metadata"]["uid"]: job["metadata"]["resourceVersion"] for job in jobs}
            new = [job for job in jobs if shown.get(uid := job["metadata"]["uid"]) != versions[uid]]
            shown = versions
            if new:
                yield sorted(
                    new, key=lambda manifest: (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
                )


class FewLines:
    """Says what is waited for, but not too often: for scripts, and where there is no terminal."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last, self._at = "", 0.0

    def __call__(self, text: str) -> None:
        if worth_a_line(text, self._last, time.monotonic() - self._at):
            self._write(text)
            self._last, self._at = text, time.monotonic()


def wait_for(
    watch: JobWatch,
    target: Target,
    *,
    timeout: float | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> JobState | None:
    """Waits until the job has reached `target`. Returns its last state; None if it waited for its deletion.

    `on_wait`: called with what it waits for. Raises JobFailedError, JobDeletedError, WaitTimeoutError.
    """
    end = None if timeout is None else time.monotonic() + timeout
    last: JobState | None = None
    while True:
        now = watch.snapshot()
        last = now.job or last
        result = wait_result(now.job, target)
        if result.outcome is WaitOutcome.REACHED:
            return now.job
        _raise_if_over(result.outcome, last, target)
        if on_wait is not None:
            lost = "the API server cannot be reached; trying again"
            on_wait(lost if now.lost_for > 1 else result.waits_for)
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            name = last.name if last else "the job"
            raise WaitTimeoutError(
                f"Timed out after {timeout:g}s waiting for {name} to {target.as_verb} ({result.waits_for}).",
                f"See what blocks it: elasticjob describe {name}",
            )
        watch.wait_for_change(min(1.0 if on_wait else LONGEST_PAUSE, left if left is not None else LONGEST_PAUSE))


def _raise_if_over(outcome: WaitOutcome, last: JobState | None, target: Target) -> None:
    name = last.name if last else "the job"
    if outcome is WaitOutcome.DELETED:
        raise JobDeletedError(f"{name} was deleted while it was waited for.")
    if outcome is WaitOutcome.FAILED and last is not None:
        raise JobFailedError(f"{name} failed: {why_failed(last)}", f"Read its log: elasticjob logs {name}")
    if outcome is WaitOutcome.FINISHED:
        raise ElasticJobError(f"{name} has finished, and will not be {target}.")
