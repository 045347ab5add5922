"""One job, as an object."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticjob.decisions.waiting import Target
from elasticjob.state import EventState, JobState, WorkerState, job_state

if TYPE_CHECKING:
    from elasticjob_api import History, Spec, Status

    from elasticjob.sdk.client import ElasticJobClient


class Job:
    """An ElasticJob as it was when it was last read; `refresh` reads it again.

    In a notebook it shows itself as a table.
    """

    def __init__(
        self, client: ElasticJobClient, manifest: Mapping[str, Any], newest: Mapping[str, Any] | None = None
    ) -> None:
        """`newest`: the job with the newest progress, which may be beside it. Default: `manifest`."""
        self._client = client
        self._manifest = manifest
        self._newest = manifest if newest is None else newest

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The whole object, as the API server has it."""
        return self._manifest

    @property
    def state(self) -> JobState:
        """What the command line shows of it."""
        return job_state(self._newest)

    @property
    def name(self) -> str:
        return str(self._manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self._manifest["metadata"]["namespace"])

    @property
    def summary(self) -> str:
        """`status.summary` in one word, as `elasticjob list` and kubectl show it: Running, Succeeded, Failed,
        Suspended ... or why it is not running, such as Unschedulable; Pending until the operator has seen it."""
        return self.state.summary

    @property
    def spec(self) -> Spec:
        """The typed spec. Raises elasticjob_api.InvalidJobError if this version cannot read it."""
        from elasticjob_api import ElasticJob  # half a second, which the command line must not pay

        return ElasticJob.parse(self._manifest).spec

    @property
    def status(self) -> Status:
        """The typed status. Raises elasticjob_api.InvalidJobError if this version cannot read it."""
        from elasticjob_api import ElasticJob

        return ElasticJob.parse(self._newest).status

    @property
    def is_finished(self) -> bool:
        return self.state.is_finished

    def refresh(self) -> Job:
        """Reads it again, and returns itself."""
        return self._become(self._client.get(self.name, namespace=self.namespace))

    def _become(self, read: Job) -> Job:
        self._manifest, self._newest = read._manifest, read._newest
        return self

    def wait(
        self,
        until: Target | str = Target.SUCCEEDED,
        *,
        timeout: float | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Job:
        """See `ElasticJobClient.wait`. Returns itself, refreshed."""
        return self._become(
            self._client.wait(self.name, until, timeout=timeout, on_wait=on_wait, namespace=self.namespace)
        )

    def logs(
        self, *, follow: bool = False, rank: int | None = None, since: str | None = None, tail: int | None = None
    ) -> Iterator[str]:
        """See `ElasticJobClient.logs`."""
        return self._client.logs(self.name, follow=follow, rank=rank, since=since, tail=tail, namespace=self.namespace)

    def workers(self) -> list[WorkerState]:
        """Its worker pods, by index."""
        return self._client.workers(self.name, namespace=self.namespace)

    def events(self) -> list[EventState]:
        """Its Events, oldest first; Kubernetes keeps them for an hour."""
        return self._client.events(self)

    def history(self) -> History:
        """Its changes and samples of its progress, as it was when it was last read. Raises ElasticJobError."""
        from elasticjob.sdk.history import read_history

        return read_history(self._manifest)

    def plot(self, file: str | None = None) -> Drawing:
        """Its history as a drawing, which a notebook shows; also written to `file`: .html, .svg or .png."""
        from elasticjob.sdk.history import drawing

        now = self._client.cluster.api.now()
        if file is not None:
            Path(file).write_bytes(drawing(self._manifest, Path(file).suffix, now))
        return Drawing(drawing(self._manifest, ".svg", now).decode())

    def scale(self, workers: int) -> Job:
        """Returns itself, refreshed."""
        return self._become(self._client.scale(self.name, workers, namespace=self.namespace))

    def suspend(self) -> Job:
        """Returns itself, refreshed."""
        return self._become(self._client.suspend(self.name, namespace=self.namespace))

    def resume(self) -> Job:
        """Returns itself, refreshed."""
        return self._become(self._client.resume(self.name, namespace=self.namespace))

    def delete(self, *, wait: bool = True) -> None:
        self._client.delete(self.name, wait=wait, namespace=self.namespace)

    def describe(self) -> str:
        """Everything about it on a page, and its problems."""
        return self._client.describe(self.name, namespace=self.namespace)

    def __repr__(self) -> str:
        state = self.state
        step = f", step={state.progress.step}" if state.progress else ""
        return f"Job({state.namespace}/{state.name}, {state.summary}, workers={state.workers_text}{step})"

    def _repr_html_(self) -> str:
        from elasticjob.views.jobs import job_html

        return job_html([self.state], datetime.datetime.now(datetime.timezone.utc))


class Drawing(str):
    """An image as SVG, which a notebook shows."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


class JobList(list[Job]):
    """Jobs, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from elasticjob.views.jobs import job_html

        return job_html([job.state for job in self], datetime.datetime.now(datetime.timezone.utc))
