"""Jobs on this machine, by elasticrun: the same commands, words and exit codes as on a cluster."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from elasticjob import ElasticJobClient, InvalidManifestError, JobFailedError
from elasticjob.cli.app import run
from elasticjob.errors import AlreadyExistsError, ElasticJobError, Exit, NotFoundError

from hack.support import eventually
from tests.integration.client.conftest import Result

SCRIPT = """
import os, time
line = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} {os.environ.get('LR')}\\n"
os.write(1, line.encode())  # in one piece: both ranks write into one pipe
time.sleep(float(os.environ.get("SLEEP", "0")))
if "FAIL" in os.environ:
    raise RuntimeError("no data")
"""


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command with --local, in this process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)

    def call(command: str, *arguments: str) -> Result:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([command, "--local", *arguments])
        return Result(code, out.getvalue(), err.getvalue())

    return call


def test_a_job_runs_on_this_machine_to_its_end_for_commands_and_python(local: Callable[..., Result]) -> None:
    flags = ["--image", "train:1", "--workers", "2", "-e", "LR=0.1"]
    result = local("submit", "bert", *flags, "--", "python", "train.py")
    assert result.code == Exit.OK, result.err
    assert result.out.startswith("bert is submitted to namespace local.")
    assert "elasticjob logs --local bert" in result.out
    assert local("wait", "bert").out == "bert is Succeeded.\n"
    lines = local("logs", "bert").out
    assert "worker-0 | rank 0 of 2 0.1" in lines
    assert "worker-0 | rank 1 of 2 0.1" in lines
    assert local("logs", "bert", "--follow").out == lines
    for tail, count in (("1", 1), ("0", 0), ("-1", lines.count("\n"))):
        assert local("logs", "bert", "--tail", tail).out.count("\n") == count
    assert local("list").out.splitlines()[1].split()[:2] == ["bert", "Succeeded"]
    assert "bert-worker-0   Completed" in local("get", "bert").out
    assert "Running" in local("describe", "bert").out
    client = ElasticJobClient(local=True)
    job = client.get("bert").wait(timeout=120)
    assert job.summary == "Succeeded"
    assert "bert-worker-0: rank 1 of 2 0.1" in [*job.logs(follow=True)]
    assert [event.reason for event in job.events()] == ["Accepted", "Succeeded"]
    assert [worker.summary for worker in job.workers()] == ["Completed"]
    with pytest.raises(ElasticJobError, match="cannot be scaled"):
        job.scale(1)
    with pytest.raises(InvalidManifestError, match="procsPerWorker"):
        client.submit("gpt", image="a", command="python", procs_per_worker="many")
    again = local("submit", "bert", *flags, "--", "python", "train.py")
    assert "There is a job bert in namespace local already." in again.err
    assert local("delete", "bert").out == "bert is deleted.\n"
    assert local("get", "bert").code == Exit.NOT_FOUND


def test_a_job_fails_as_on_a_cluster(local: Callable[..., Result]) -> None:
    flags = ["--image", "train:1", "--max-restarts", "0", "-e", "FAIL=1"]
    result = local("submit", "bert", *flags, "--follow", "--", "python", "train.py")
    assert result.code == Exit.JOB_FAILED
    assert result.out.count("| rank 0 of 1 None") == 1
    assert "RuntimeError: no data" in result.err
    assert "operator" not in result.err, "there is none"
    assert local("wait", "bert").code == Exit.JOB_FAILED


def test_a_job_that_runs_is_deleted(local: Callable[..., Result]) -> None:
    result = local("submit", "bert", "--image", "a", "-e", "SLEEP=600", "--", "python", "train.py")
    assert result.code == Exit.OK, result.err
    assert local("wait", "bert", "--for", "Running").code == Exit.OK
    assert local("wait", "bert", "--timeout", "0s").code == Exit.TIMEOUT
    eventually(lambda: "rank 0" in local("logs", "bert").out)
    for workers in ("1", "2", "0"):  # within the limits of its size, or not
        result = local("scale", "bert", workers)
        assert result.code == Exit.ERROR
        assert result.err.startswith("Error: A job on this machine cannot be scaled.")
    assert "A job on this machine cannot be suspended or resumed." in local("suspend", "bert").err
    assert "There is no cluster to look at" in local("doctor").out
    assert "bert" in local("list", "-l", "team!=nlp").out
    assert local("list", "-l", "team in (nlp)").code == Exit.USAGE
    assert "--local and --context cannot be used together" in local("list", "--context", "x").err
    assert local("delete", "bert").code == Exit.OK
    assert local("list").err.startswith("There are no ElasticJobs")


@pytest.mark.usefixtures("local")
def test_a_job_that_starts_has_not_failed_for_others() -> None:
    client, seen = ElasticJobClient(local=True), set[str]()
    with ThreadPoolExecutor() as pool:
        submitting = [pool.submit(client.submit, "bert", image="a", command="python train.py") for _ in range(2)]
        while not all(item.done() for item in submitting):
            with contextlib.suppress(NotFoundError):
                seen.add(client.get("bert").summary)
    assert "Failed" not in seen
    assert [type(item.exception()) for item in submitting].count(AlreadyExistsError) == 1
    client.wait("bert", timeout=120)


@pytest.mark.parametrize("command", ["python train.py", "sh -c 'sleep 600 & RANK=0 WORLD_SIZE=1 python train.py; :'"])
@pytest.mark.usefixtures("local")
def test_training_ends_with_the_process_that_runs_it(tmp_path: Path, command: str) -> None:
    client = ElasticJobClient(local=True)
    job = client.submit("bert", image="a", command=command, env={"SLEEP": 600})
    job.wait("Running")
    eventually(lambda: any("rank 0 of 1 None" in line for line in job.logs()))
    assert processes_of(job.state.uid)
    os.kill(int((tmp_path / "state/elasticjob/jobs/bert/lock").read_text()), signal.SIGKILL)
    eventually(lambda: not processes_of(job.state.uid))
    with pytest.raises(JobFailedError, match="The process that ran the job has ended"):
        job.wait()


@pytest.mark.usefixtures("local")
def test_what_a_command_leaves_running_ends_with_it() -> None:
    """As in a container."""
    job = ElasticJobClient(local=True).submit("bert", image="a", command="sh -c 'sleep 600 & echo done'")
    assert job.wait(timeout=120).summary == "Succeeded"
    eventually(lambda: not processes_of(job.state.uid))


def processes_of(uid: str) -> list[str]:
    """Those of a job."""
    variable, found = f"ELASTICJOB_UID={uid}".encode(), list[str]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


def test_files_that_are_no_jobs_are_passed_over_or_named(local: Callable[..., Result], tmp_path: Path) -> None:
    folder = tmp_path / "state/elasticjob/jobs"
    folder.mkdir(parents=True)
    (folder / "bert").touch()
    assert local("list").err.startswith("There are no ElasticJobs")
    result = local("submit", "bert", "--image", "a", "--", "python", "train.py")
    assert result.code == Exit.ERROR
    assert f"Cannot use {folder / 'bert'}" in result.err
