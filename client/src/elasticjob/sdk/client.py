"""ElasticJobClient: everything that the command line does, from Python."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from elasticjob.cluster.http import ApiServer
from elasticjob.cluster.kubeconfig import find
from elasticjob.cluster.local import NAMESPACE, LocalApi
from elasticjob.cluster.objects import Cluster
from elasticjob.decisions.flag_values import seconds
from elasticjob.decisions.job_request import JobOptions, manifest_of, options_of, shows_options
from elasticjob.decisions.log_selection import Selection
from elasticjob.decisions.scaling import check_scale, check_suspend
from elasticjob.decisions.waiting import Target
from elasticjob.errors import (
    AlreadyExistsError,
    ElasticJobError,
    ForbiddenError,
    InvalidManifestError,
    NotFoundError,
    UsageError,
)
from elasticjob.sdk.job import Job, JobList
from elasticjob.state import EventState, JobState, WorkerState, event_states, job_state, with_progress, worker_states

if TYPE_CHECKING:
    from elasticjob.cluster.http import Json
    from elasticjob.decisions.log_lines import Line
    from elasticjob.sdk.log_reader import LogFollower


T = TypeVar("T")
Jobs = list[dict[str, Any]]
Workers = list[WorkerState]
Events = list[EventState]


class ElasticJobClient:
    """ElasticJobs of one cluster, or with `local` of this machine.

    The cluster is that of kubectl's current context, unless `context` or `kubeconfig` name another; in a pod without a
    kubeconfig, the pod's own. With `local=True`, jobs run on this machine, by elasticrun, to try a script before it
    goes to a cluster: a job has one worker pod, with as many worker processes as it starts with on a cluster. Its
    image, volumes and Secrets are not used, and it cannot be scaled or suspended. Every method raises an
    `ElasticJobError` that says what is wrong and what to do.

        client = ElasticJobClient()
        job = client.submit("bert", image="my-company/train:1.4", command="python train.py", workers=(2, 4))
        for line in job.logs(follow=True):
            print(line)
        job.wait()
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        context: str | None = None,
        kubeconfig: str | None = None,
        as_user: str | None = None,
        as_groups: Sequence[str] = (),
        as_uid: str | None = None,
        local: bool = False,
        warn: Callable[[str], None] | None = None,
        on_slow: Callable[[str], None] | None = None,
    ) -> None:
        """`as_user`, `as_groups`, `as_uid`: whom to act as. `warn`: receives the API server's warnings. Default:
        warnings.warn. `on_slow`: receives the API server's address if an answer takes long."""
        self._warn = warn or _warn
        flags = {"-n": namespace, "--context": context, "--kubeconfig": kubeconfig, "--as": as_user, "--as-uid": as_uid}
        self.flags: list[tuple[str, ...]] = [(flag, value) for flag, value in flags.items() if value]
        """Of the commands that messages suggest."""
        self.flags += [("--as-group", group) for group in as_groups]
        if local:
            self.flags = [flag for flag in self.flags if flag != ("-n", NAMESPACE)]
            if self.flags:
                raise UsageError(f"--local and {self.flags[0][0]} cannot be used together: jobs run on this machine.")
            self.flags = [("--local",)]
            self.cluster = Cluster(LocalApi(self._warn))
            return
        acting = {"as": as_user, "as-groups": list(as_groups), "as-uid": as_uid}
        target = find(kubeconfig, context, namespace, {key: value for key, value in acting.items() if value})
        self.cluster = Cluster(ApiServer(target, self._warn, on_slow))

    @property
    def is_local(self) -> bool:
        """Whether jobs run on this machine."""
        return isinstance(self.cluster.api, LocalApi)

    @property
    def namespace(self) -> str:
        """The default namespace of every method."""
        return self.cluster.namespace

    # Submitting

    @shows_options
    def submit(
        self,
        name: str,
        *,
        image: str,
        command: str | Sequence[str],
        namespace: str | None = None,
        dry_run: bool = False,
        **options: Any,
    ) -> Job:
        """Creates a job. `options`: the fields of `elasticjob.JobOptions`. `dry_run`: the API server checks the job,
        but does not create it. Raises UsageError for an option that does not exist."""
        return self.submit_options(options_of(name, image, command, options), namespace=namespace, dry_run=dry_run)

    def submit_options(self, options: JobOptions, *, namespace: str | None = None, dry_run: bool = False) -> Job:
        return self.create(manifest_of(options, namespace or self.namespace), dry_run=dry_run)

    def create(self, manifest: Json, *, dry_run: bool = False) -> Job:
        """Creates a job from a manifest."""
        name = manifest["metadata"]["name"]
        if self.is_local:
            from elasticjob.sdk.models import check

            check(manifest)  # as the API server does
        try:
            return Job(self, self.cluster.create_job(manifest, dry_run=dry_run))
        except AlreadyExistsError:
            where = manifest["metadata"].get("namespace") or self.namespace
            raise AlreadyExistsError(
                f"There is a job {name} in namespace {where} already.",
                f"Choose another name, or delete it first: elasticjob delete {name} -n {where}",
            ) from None
        except InvalidManifestError as error:
            if "unknown field" not in error.message:
                raise
            raise InvalidManifestError(
                error.message,
                "Correct the name, or upgrade the operator if it is older than this client: elasticjob doctor",
            ) from None

    # Reading

    def get(self, name: str, *, namespace: str | None = None) -> Job:
        """Raises NotFoundError, with the names that are alike."""
        found = self._job(name, namespace)
        return Job(self, found, with_progress(found, self.cluster.progress(name, namespace)))

    def list(self, *, namespace: str | None = None, all_namespaces: bool = False, selector: str = "") -> JobList:
        """By namespace and name. `selector`: of labels, as kubectl's -l. Raises NotFoundError for the namespace."""
        where = "" if all_namespaces else namespace or self.namespace
        newest = self.cluster.progresses(where)
        jobs = JobList(Job(self, job, newest(job)) for job in self.cluster.jobs(where, selector))
        if where and not jobs:
            self.cluster.check_namespace(where)
        jobs.sort(key=lambda job: (job.namespace, job.name))
        return jobs

    def listed(self, *, all_namespaces: bool = False, selector: str = "") -> Iterator[Jobs]:
        """Like `list`, but only what a table shows of each job, and page by page as the API server sends them."""
        where, found = "" if all_namespaces else self.namespace, False
        for jobs in [self.cluster.jobs(where, selector)] if self.is_local else self.cluster.listed(where, selector):
            if jobs:
                found = True
                yield jobs
        if where and not found:
            self.cluster.check_namespace(where)

    def places(self, jobs: Iterable[JobState]) -> dict[tuple[str, str], int]:
        """(namespace, name) -> place of a job that waits in a queue of Kueue, if that tells."""
        waiting = [job for job in jobs if job.queue and job.summary == "Queued"]
        found = {}
        for namespace, queue in {(job.namespace, job.queue) for job in waiting}:
            places = self.cluster.places(queue, namespace)
            found.update({(namespace, name): place for name, place in places.items()})
        return found

    def workers(self, name: str, *, namespace: str | None = None) -> Workers:
        """The worker pods of a job, by index."""
        return worker_states(self.cluster.workers(name, namespace))

    def events(self, job: Job) -> Events:
        """The Events of a job, oldest first."""
        return event_states(self.cluster.events(job.manifest["metadata"]["uid"], job.namespace))

    def describe(
        self, name: str, *, namespace: str | None = None, width: int | None = None, color: bool = False
    ) -> str:
        """Everything about a job on a page, and its problems."""
        from elasticjob.views.describe import describe

        job = self.get(name, namespace=namespace)
        try:
            events: Events | None = self.events(job)
        except ForbiddenError as error:
            self._warn(error.message)
            events = None
        try:
            workers = self.workers(name, namespace=namespace)
        except ForbiddenError as error:
            self._warn(error.message)
            workers = []
        now = self.cluster.api.now()
        return "\n".join(describe(job.state, workers, events, now, width=width, color=color, flags=self.flags))

    # Waiting and logs

    def wait(
        self,
        name: str,
        until: Target | str = Target.SUCCEEDED,
        *,
        timeout: float | None = None,
        on_wait: Callable[[str], None] | None = None,
        namespace: str | None = None,
    ) -> Job:
        """Waits until the job is Succeeded, Running, Suspended, Failed, Finished (either way) or Deleted.

        `timeout`: s; None: none. `on_wait`: receives what it waits for, about once a second; without it, a few lines
        on standard error say so. Raises JobFailedError, JobDeletedError, WaitTimeoutError.
        """
        from elasticjob.sdk.watch import FewLines, JobWatch, wait_for

        report = on_wait or FewLines(lambda text: print(f"{name}: {text}", file=sys.stderr))  # noqa: T201 progress
        with self._found(JobWatch, name, namespace) as watch:
            watch.follow_progress()
            wait_for(watch, Target(until), timeout=timeout, on_wait=report)
            found = watch.body() or watch.first
            return Job(self, found, watch.newest(found))

    def logs(
        self,
        name: str,
        *,
        follow: bool = False,
        rank: int | None = None,
        replica: int | None = None,
        since: str | None = None,
        tail: int | None = None,
        namespace: str | None = None,
    ) -> Iterator[str]:
        """Lines of all worker pods, merged by time, each after the name of its pod.

        `rank`: those of its worker pod only, without a name. `replica`: those of a replica's worker pods only, and
        `rank` is the replica's. `follow`: as they arrive until the job has finished, also of worker pods that are
        created meanwhile. `since`: such as 5m. `tail`: only the last lines of each pod.
        """
        newer = seconds("--since", since) if since else None
        selection = Selection(newer, tail, rank=rank, replica=replica, everything=True)
        for line in self.log_lines(name, selection, follow=follow, namespace=namespace):
            yield line.text if rank is not None else f"{line.source}: {line.text}"

    def log_lines(
        self,
        name: str,
        selection: Selection,
        *,
        follow: bool = False,
        namespace: str | None = None,
        timeout: float | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> Iterator[Line] | LogFollower:
        """Like `logs`, with time and source of each line."""
        from elasticjob.sdk.log_reader import LogFollower, read_logs

        if selection.rank is not None and selection.rank < 0:
            raise UsageError(f"--rank {selection.rank}: ranks start at 0.")
        where = namespace or self.namespace
        self._job(name, where)
        if follow:
            return LogFollower(self.cluster, name, where, selection, notify, timeout=timeout)
        return read_logs(self.cluster, name, where, selection, notify)

    # Changing

    def scale(self, name: str, workers: int, *, namespace: str | None = None) -> Job:
        """Sets the number of worker pods of a job. Raises UsageError if its limits do not allow it."""
        job = job_state(self._job(name, namespace))
        if not self.is_local:  # no job on this machine can be scaled, whatever its limits
            check_scale(job, workers)
        self.cluster.patch_job(name, {"spec": {"replicas": workers}}, "scale", namespace)
        return self.get(name, namespace=namespace)

    def suspend(self, name: str, *, namespace: str | None = None) -> Job:
        """Deletes the worker pods and keeps the job; `resume` continues from the last checkpoint."""
        return self._set_suspended(name, namespace, suspend=True)

    def resume(self, name: str, *, namespace: str | None = None) -> Job:
        return self._set_suspended(name, namespace, suspend=False)

    def delete(
        self,
        name: str,
        *,
        wait: bool = True,
        timeout: float | None = None,
        on_wait: Callable[[str], None] | None = None,
        namespace: str | None = None,
    ) -> None:
        """Deletes a job with its worker pods. `wait`: until they are gone."""
        uid = self.start_deletion(name, namespace=namespace)
        if wait:
            self.wait_for_deletion(name, uid, timeout=timeout, on_wait=on_wait, namespace=namespace)

    def start_deletion(self, name: str, *, namespace: str | None = None) -> str:
        """Returns the UID of the job, which is gone once its worker pods are."""
        uid: str = self._job(name, namespace)["metadata"]["uid"]
        self.cluster.delete_job(name, namespace)
        return uid

    def wait_for_deletion(
        self,
        name: str,
        uid: str,
        *,
        timeout: float | None = None,
        on_wait: Callable[[str], None] | None = None,
        namespace: str | None = None,
    ) -> None:
        """Not for that of a later job of the same name."""
        from elasticjob.sdk.watch import JobWatch, wait_for

        try:
            with JobWatch(self.cluster, name, namespace) as watch:
                if watch.uid == uid:
                    wait_for(watch, Target.DELETED, timeout=timeout, on_wait=on_wait)
        except NotFoundError:
            return

    def _set_suspended(self, name: str, namespace: str | None, *, suspend: bool) -> Job:
        check_suspend(job_state(self._job(name, namespace)), suspend=suspend)
        return Job(self, self.cluster.patch_job(name, {"spec": {"suspend": suspend}}, "", namespace))

    def _job(self, name: str, namespace: str | None) -> Json:
        return self._found(Cluster.job, name, namespace)

    def _found(self, read: Callable[[Cluster, str, str | None], T], name: str, namespace: str | None) -> T:
        try:
            return read(self.cluster, name, namespace)
        except NotFoundError as error:
            raise self._with_similar(error, name, namespace) from None

    def _with_similar(self, error: NotFoundError, name: str, namespace: str | None) -> NotFoundError:
        if error.remedy:
            return error
        try:
            known = self.cluster.names(namespace)
        except ElasticJobError:
            return error
        similar = difflib.get_close_matches(name, known, n=3)
        if similar:
            return NotFoundError(error.message, f"Did you mean {' or '.join(similar)}?")
        listed = "See all jobs: elasticjob list -A" if not known else "See its jobs: elasticjob list"
        return NotFoundError(error.message, listed)


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, stacklevel=3)
