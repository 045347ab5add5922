"""Training continues in place under real agents: whatever is killed, joins or leaves, no surviving worker process
restarts, and the weights at the end are those of an undisturbed run, bit by bit."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hack.support import eventually
from tests.integration.runtime.agents import QUICK
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.driver import SCRIPT
from tests.integration.runtime_session.session_job import LONG, START, SessionJob

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.fixture
def session_job(etcd: str, tmp_path: pathlib.Path) -> Iterator[SessionJob]:
    job = SessionJob(etcd, tmp_path)
    yield job
    job.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, plain python, without DDP."""
    output = tmp_path_factory.mktemp("undisturbed") / "plain"
    environment = {**os.environ, **LONG, "STEP_SECONDS": "0", "OUTPUT": str(output)}
    subprocess.run([sys.executable, os.fspath(SCRIPT)], env=environment, check=True)
    return Run.read(output)


def test_no_surviving_process_restarts_through_a_crash_a_lost_node_a_join_and_a_leave(
    session_job: SessionJob, undisturbed: Run
) -> None:
    job = session_job
    a, b, c = (job.start(name) for name in "abc")
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    job.start("d")  # imports meanwhile

    os.kill(job.pids("b")[-1], signal.SIGKILL)
    eventually(lambda: len(job.pids("b")) == 2, 30, what="b's process is replaced")
    job.wait_for_world(4, "a", "b", "c", "d", timeout=START)

    c.process.kill()
    job.wait_for_world(3, "a", "b", "d")
    b.signal(signal.SIGTERM)
    job.wait_for_world(2, "a", "d")
    b.exit_code()

    job.assert_finished(undisturbed, "a", "d")
    assert len(job.pids("a")) == len(job.pids("d")) == len(job.pids("c")) == 1
    assert len(job.pids("b")) == 2
    assert a.exit_code() == 0


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="", marks=pytest.mark.nightly),
        pytest.param(("--virtual-local-rank",), id="LOCAL_RANK is 0 in all of them"),
    ],
)
def test_the_other_processes_of_a_member_continue_when_one_of_them_is_killed(
    session_job: SessionJob, undisturbed: Run, flags: tuple[str, ...]
) -> None:
    job = session_job
    job.start("a", "--nproc-per-node=3", *flags, nnodes="1")
    job.wait_for_world(3, "a", timeout=START)
    os.kill(job.pids("a", 1)[-1], signal.SIGKILL)
    job.assert_finished(undisturbed, "a", local_ranks=3)
    assert [len(job.pids("a", rank)) for rank in range(3)] == [1, 2, 1]


def test_a_process_that_stops_before_the_others_is_named_and_does_not_end_the_job(
    etcd: str, tmp_path: pathlib.Path
) -> None:
    job = SessionJob(
        etcd, tmp_path, script=pathlib.Path(__file__).with_name("early_script.py"), environment={"EARLY": "b"}
    )
    try:
        for name in "ab":
            job.start(name, nnodes="1:2")
        assert [agent.exit_code(START) for agent in job.agents] == [0, 0], job.logs
        assert "worker processes of b ended with code 0 while others were training" in job.logs
        assert [event["members"] for event in job.agents[0].events if event["event"] == "finished-early"] == [["b"]]
    finally:
        job.close()


def test_a_process_that_hangs_is_replaced_and_the_others_continue(session_job: SessionJob, undisturbed: Run) -> None:
    job, hangs = session_job, session_job.directory / "hangs"
    flags, conf = ("--hang-factor", "3"), f"{QUICK},hang_min=3"
    job.start("a", *flags, nnodes="2", conf=conf, SLOW_SECONDS="0.3")
    b = job.start("b", *flags, nnodes="2", conf=conf, SLOW=str(hangs), SLOW_SECONDS="1000")
    eventually(lambda: len(job.steps("b")) > 10, START, what=lambda: f"steps are timed; logs:\n{job.logs}")
    hangs.touch()
    eventually(lambda: "hang: no step for" in b.output, START, what=lambda: f"the hang is found; logs:\n{job.logs}")
    hangs.unlink()
    job.assert_finished(undisturbed, "a", "b")
    assert (len(job.pids("a")), len(job.pids("b"))) == (1, 2)
    assert "in_session (script.py:" in next(event["message"] for event in b.events if event["event"] == "failure")
