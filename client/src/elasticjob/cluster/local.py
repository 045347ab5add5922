"""Jobs on this machine: elasticrun in place of a cluster, behind the requests that the client sends to an API server.

Each job has a folder with the ElasticJob and its log. A process of its own runs it
(`python -m elasticjob.cluster.local_runner`), so that it goes on without the client.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from elasticjob.cluster.api_errors import api_error
from elasticjob.cluster.kubeconfig import ClusterAccess
from elasticjob.decisions.label_selectors import selects, terms_of
from elasticjob.errors import ElasticJobError, UsageError
from elasticjob.names import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_INDEX, LABEL_JOB, PLURAL
from elasticjob.state import job_state, training_container

Json = dict[str, Any]
NAMESPACE = "local"
POLL_SECONDS = 0.2
JOB, LOG, LOCK, DELETED, TERMINATION = "job.json", "log", "lock", "deleted", "termination"
"""Files of a job's folder. `LOCK`: held by the process that runs it, whose ID it has.
`DELETED`: there once it is to be deleted."""
_PATH = re.compile(rf"/({PLURAL}|pods|events)(?:/([^/]+))?(?:/(\w+))?$")


def jobs_folder() -> Path:
    """Where the folders of jobs are: see the XDG base directories."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "elasticjob" / "jobs"


class LocalApi:
    """What the client asks of an ApiServer."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self.target = ClusterAccess("this machine", NAMESPACE)
        self.skew = 0.0

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.timezone.utc)

    def get(self, path: str, **query: Any) -> Json:
        return self.call("GET", path, **query)

    def call(self, method: str, path: str, body: Any = None, _: str = "", **query: Any) -> Json:
        """Raises ElasticJobError."""
        try:
            return self._answer(method, path, body, query)
        except OSError as error:
            raise ElasticJobError(
                f"Cannot use {error.filename or jobs_folder()}, where jobs on this machine are kept: {error.strerror}.",
                "Make it accessible, or set XDG_STATE_HOME to another folder.",
            ) from error

    def _answer(self, method: str, path: str, body: Any, query: Mapping[str, Any]) -> Json:
        if re.fullmatch(r"/api/v1/namespaces/[^/]+", path):
            return {}
        kind, name, part = _parts(path)
        if method == "POST":
            return self._create(body, dry_run="dryRun" in query)
        if method == "PATCH":
            what = "scaled" if part else "suspended or resumed"
            raise ElasticJobError(f"A job on this machine cannot be {what}.", "Submit it without --local.")
        if not name:
            return {"metadata": {"resourceVersion": "1"}, "items": list(_objects(kind, query))}
        job = read_job(jobs_folder() / name)
        if job is None:
            raise api_error(404, {"details": {"name": name, "kind": kind}}, path, NAMESPACE, self.target.server)
        if method == "DELETE":
            _delete(jobs_folder() / name)
        return job

    def stream(self, path: str, **query: Any) -> LocalStream:
        _, name, part = _parts(path)
        if part == "log" and name is not None:
            folder = jobs_folder() / name.removesuffix("-worker-0")
            return LocalStream(lambda stream: _log(folder, query, stream))
        return LocalStream(_expired)

    def _create(self, body: Json, *, dry_run: bool) -> Json:
        """Starts the job."""
        given = {"namespace": NAMESPACE, "uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        job = {**body, "metadata": {**body["metadata"], **given, "resourceVersion": "1"}}
        lacks = not_here(job)
        folder = jobs_folder() / body["metadata"]["name"]
        if dry_run:
            return job
        read_job(folder)  # removes it if it has been deleted
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("a") as lock:
            if not _acquire(lock, folder):
                raise api_error(409, {"reason": "AlreadyExists"}, "", NAMESPACE, self.target.server)
            if lacks:
                self._warn(f"On this machine, the job runs without {', '.join(lacks)}.")
            job["status"] = {}  # not what a manifest may have
            condition(job, "Accepted", "Accepted", "The job runs on this machine.")
            condition(job, "Running", "Starting", "The worker processes are starting.", true=False)
            _start(folder, job, lock)
        return job


def not_here(job: Json) -> list[str]:
    """The fields of a job that have no effect on this machine. Raises UsageError for a suspended job."""
    lifecycle = job["spec"].get("lifecycle") or {}
    if job["spec"].get("suspend"):
        raise UsageError(
            "A job on this machine cannot be suspended.", "Leave out --suspended (spec.suspend), or --local."
        )
    container = training_container(job)
    fields = [*lifecycle, *(["volumes"] if job["spec"]["workers"]["template"]["spec"].get("volumes") else [])]
    fields += ["envFrom"] if container.get("envFrom") else []
    variables = [variable["name"] for variable in container.get("env") or () if variable.get("valueFrom")]
    return fields + [f"the variable {variable}" for variable in variables]


def _acquire(lock: IO[str], folder: Path) -> bool:
    """Whether the job is new. Those who read hold its lock, too, for a moment."""
    while not (folder / JOB).exists():
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return not (folder / JOB).exists()
        time.sleep(0.01)
    return False


def _start(folder: Path, job: Json, lock: IO[str]) -> None:
    """The process that runs the job holds the lock from its start, and begins when others can see the job."""
    with (folder / "runner").open("wb") as output:
        runner = subprocess.Popen(
            [sys.executable, "-m", "elasticjob.cluster.local_runner", str(folder), str(lock.fileno())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
    (folder / LOCK).write_text(str(runner.pid))
    write(folder, job)
    assert runner.stdin is not None
    with contextlib.suppress(BrokenPipeError), runner.stdin:  # one that has ended already has failed
        runner.stdin.write(json.dumps(job).encode())


class LocalStream:
    """Lines of a log or a watch, as Stream."""

    def __init__(self, lines: Callable[[LocalStream], Iterator[bytes]]) -> None:
        self._lines = lines
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        return self._lines(self)

    def close(self) -> None:
        self.closed = True


def _parts(path: str) -> tuple[str, str | None, str | None]:
    """(resource, name, subresource). Raises ElasticJobError for what is not on this machine."""
    found = _PATH.search(path)
    if found is None:
        raise ElasticJobError("There is no cluster to look at: with --local, jobs run on this machine.")
    return found[1], found[2], found[3]


def _objects(kind: str, query: Mapping[str, Any]) -> Iterator[Json]:
    """Those that the selectors of a query match."""
    wanted = str(query.get("fieldSelector") or "").rpartition("=")[2]
    terms = terms_of(query.get("labelSelector") or "")
    for job in filter(None, map(read_job, sorted(path.parent for path in jobs_folder().glob(f"*/{JOB}")))):
        for pod in [job] if kind == PLURAL else _pods(job) if kind == "pods" else _events(job):
            names = (pod["metadata"]["name"], (pod.get("involvedObject") or {}).get("uid"))
            if selects(terms, pod["metadata"].get("labels") or {}) and (not wanted or wanted in names):
                yield pod


def read_job(folder: Path) -> Json | None:
    """The job; None: there is none. One whose process has ended without a word has failed."""
    running, deleted = _is_running(folder), (folder / DELETED).exists()
    if deleted and not running:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        job: Json = json.loads((folder / JOB).read_text())
    except FileNotFoundError:
        return None
    if deleted:
        job["metadata"]["deletionTimestamp"] = timestamp()
    if not running and not job_state(job).is_finished:
        finish(job, 1, "The process that ran the job has ended.")
    return job


def _is_running(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), (folder / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _delete(folder: Path) -> None:
    (folder / DELETED).touch()
    if _is_running(folder):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(int((folder / LOCK).read_text()), signal.SIGTERM)
    read_job(folder)


def _pods(job: Json) -> list[Json]:
    """Its one worker pod."""
    state, metadata = job_state(job), job["metadata"]
    if state.started is None and not state.is_finished:
        return []
    labels = {LABEL_JOB: state.name, LABEL_COMPONENT: COMPONENT_WORKER, LABEL_INDEX: "0"}
    own = {"name": f"{state.name}-worker-0", "namespace": NAMESPACE, "uid": f"{state.uid}-0", "labels": labels}
    own |= {"creationTimestamp": metadata["creationTimestamp"], "resourceVersion": metadata["resourceVersion"]}
    phase = "Succeeded" if state.is_true("Succeeded") else "Failed" if state.is_finished else "Running"
    code = state.failure.exit_code if state.failure else 0
    how = {"terminated": {"exitCode": code}} if state.is_finished else {"running": {}}
    ready = {"type": "Ready", "status": str(not state.is_finished)}
    status = {"phase": phase, "conditions": [ready], "containerStatuses": [{"state": how}]}
    return [{"metadata": own, "spec": {"nodeName": os.uname().nodename}, "status": status}]


def _events(job: Json) -> Iterator[Json]:
    """One for each condition that is true."""
    about = {"uid": job["metadata"]["uid"]}
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["status"] == "True":
            kind = "Warning" if condition["type"] == "Failed" else "Normal"
            event = {"metadata": {"name": condition["type"]}, "involvedObject": about, "type": kind}
            event |= {"reason": condition["type"], "message": condition["message"]}
            yield {**event, "lastTimestamp": condition["lastTransitionTime"]}


def _expired(_: LocalStream) -> Iterator[bytes]:
    """A watch that asks for another list, soon."""
    time.sleep(POLL_SECONDS)
    yield b'{"type": "ERROR", "object": {"message": "list again"}}'


def _log(folder: Path, query: Mapping[str, Any], stream: LocalStream) -> Iterator[bytes]:
    age = datetime.timedelta(seconds=query.get("sinceSeconds") or 10**9)
    oldest = timestamp(datetime.datetime.now(datetime.timezone.utc) - age)
    since = (query.get("sinceTime") or oldest).removesuffix("Z").encode()
    with contextlib.suppress(FileNotFoundError), (folder / LOG).open("rb") as log:
        lines, tail = log.readlines(), query.get("tailLines")
        first = 0 if tail is None else max(0, len(lines) - tail)
        yield from (line.rstrip(b"\n") for line in lines[first:] if line >= since)
        ended = not query.get("follow")
        while not ended and not stream.closed:
            time.sleep(POLL_SECONDS)
            ended = not _is_running(folder)
            yield from (line.rstrip(b"\n") for line in log)


def timestamp(at: datetime.datetime | None = None) -> str:
    """RFC 3339; the present by default."""
    return (at or datetime.datetime.now(datetime.timezone.utc)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write(folder: Path, job: Json) -> None:
    """As a whole."""
    job["metadata"]["resourceVersion"] = str(time.time_ns())
    (folder / "new").write_text(json.dumps(job))
    (folder / "new").replace(folder / JOB)


def condition(job: Json, type_: str, reason: str, message: str, *, true: bool = True) -> None:
    status = job.setdefault("status", {})
    others = [condition for condition in status.get("conditions") or () if condition["type"] != type_]
    new = {"type": type_, "status": str(true), "reason": reason, "message": message, "lastTransitionTime": timestamp()}
    status["conditions"] = [*others, new]
    if true:
        status["summary"] = type_


def finish(job: Json, code: int, message: str) -> None:
    """`code`: of elasticrun. `message`: why it failed."""
    condition(job, "Running", "Finished", "The job has finished.", true=False)
    job["status"] |= {"completionTime": timestamp(), "readyReplicas": 0, "replicas": 0, "worldSize": 0}
    if code == 0:
        condition(job, "Succeeded", "WorkersSucceeded", "All worker processes have succeeded.")
        return
    pod = f"{job['metadata']['name']}-worker-0"
    job["status"]["lastFailure"] = {"worker": pod, "reason": "ApplicationError", "message": message, "exitCode": code}
    condition(job, "Failed", "WorkersFailed", f"elasticrun ended with exit code {code}.")
