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
from elasticjob_runtime.contract import Env

from hack.support import eventually
from tests.integration.runtime.agents import QUICK, SOURCE, Agent, Job
from tests.integration.runtime_session.conftest import SETTINGS, Run
from tests.integration.runtime_session.driver import SCRIPT

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

LONG = {**SETTINGS, "EPOCHS": "6"}
STEPS = 6 * 63

START = 120.0
"""s for agents to import torch on a busy machine."""


class SessionJob(Job):
    """Agents whose scripts have a session. Steps take 0.3 s until `hurry`, so that slow members can join."""

    def __init__(self, endpoint: str, directory: pathlib.Path) -> None:
        super().__init__(endpoint, directory)
        (directory / "slow").touch()

    def hurry(self) -> None:
        (self.directory / "slow").unlink(missing_ok=True)

    def start(self, name: str, *flags: str, nnodes: str = "2:4", conf: str = QUICK, **environment: str) -> Agent:  # type: ignore[override]
        log = self.directory / f"{name}-{len(self.agents)}.log"
        events = log.with_suffix(".events")
        events.touch()
        command = [
            *(sys.executable, "-m", "elasticjob_runtime", "--nnodes", nnodes, "--rdzv-backend", "etcd-v3"),
            *("--rdzv-endpoint", self.endpoint, "--rdzv-id", self.run_id, "--rdzv-conf", conf),
            *("--max-restarts", "20", "--events", str(events), *flags, os.fspath(SCRIPT)),
        ]
        given = {
            **LONG, "SLOW": str(self.directory / "slow"), "SLOW_SECONDS": "0.3",
            "PYTHONPATH": str(SOURCE), Env.MEMBER_ID: name, "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "OUTPUT": str(self.directory / f"{name}-{{local_rank}}"), **environment,
        }  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **given}
            )
        agent = Agent(name, process, log, events, log.with_suffix(".termination"))
        self.agents.append(agent)
        return agent

    def pids(self, name: str, local_rank: int = 0) -> list[int]:
        """All worker processes that this member ever had for a local rank, in order."""
        path = self.directory / f"{name}-{local_rank}.pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def steps(self, name: str, local_rank: int = 0) -> list[tuple[int, int]]:
        """(committed steps, world size), in order."""
        path = self.directory / f"{name}-{local_rank}.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), int(size)) for _, step, size in (line.split() for line in lines if line.count(" ") == 2)]

    def wait_for_world(self, size: int, *members: str, timeout: float = 60.0) -> None:
        """Each of these members has taken three steps in a row in a world of `size`."""

        def trains() -> bool:
            for name in members:
                last = [world for _, world in self.steps(name)[-3:]]
                assert last == [size] * 3, f"{name}: {last}"
            return True

        eventually(trains, timeout, what=f"a world of {size}; logs:\n{self.logs}")

    def assert_finished(self, undisturbed: Run, *members: str, local_ranks: int = 1) -> None:
        self.hurry()
        for agent in self.agents:
            if agent.name in members:
                assert agent.exit_code(120.0) == 0, self.logs
        for name in members:
            for rank in range(local_ranks):
                run = Run.read(self.directory / f"{name}-{rank}")
                run.assert_same_training(undisturbed)
                assert run.facts["committed"] == STEPS


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
    subprocess.run([sys.executable, os.fspath(SCRIPT)], env=environment, check=True, timeout=120)
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


@pytest.mark.parametrize("flags", [(), ("--virtual-local-rank",)], ids=["", "LOCAL_RANK is 0 in all of them"])
def test_the_other_processes_of_a_member_continue_when_one_of_them_is_killed(
    session_job: SessionJob, undisturbed: Run, flags: tuple[str, ...]
) -> None:
    job = session_job
    job.start("a", "--nproc-per-node=3", *flags, nnodes="1")
    job.wait_for_world(3, "a", timeout=START)
    os.kill(job.pids("a", 1)[-1], signal.SIGKILL)
    job.assert_finished(undisturbed, "a", local_ranks=3)
    assert [len(job.pids("a", rank)) for rank in range(3)] == [1, 2, 1]


def test_a_process_that_a_signal_stops_is_replaced_and_the_others_continue(
    session_job: SessionJob, undisturbed: Run
) -> None:
    """Nothing else happens to the job: only its agent can notice."""
    job = session_job
    for name in "abc":
        job.start(name)
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    os.kill(job.pids("b")[-1], signal.SIGSTOP)
    eventually(lambda: len(job.pids("b")) == 2, 60, what=f"b's process is replaced; logs:\n{job.logs}")
    assert "stopped by SIGSTOP for 2 s" in job.logs
    job.assert_finished(undisturbed, "a", "b", "c")
    assert (len(job.pids("a")), len(job.pids("c"))) == (1, 1)


def test_a_frozen_process_is_replaced_in_the_change_that_it_does_not_answer(
    session_job: SessionJob, undisturbed: Run
) -> None:
    """A process that does not answer is given up, before it counts as stopped."""
    job = session_job
    for name in "abc":
        job.start(name)
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    os.kill(job.pids("b")[-1], signal.SIGSTOP)
    os.kill(job.pids("c")[-1], signal.SIGKILL)  # the change in which b does not answer
    eventually(lambda: len(job.pids("b")) == 2, 60, what=f"b's process is replaced; logs:\n{job.logs}")
    job.assert_finished(undisturbed, "a", "b", "c")
    assert len(job.pids("a")) == 1


def test_processes_restart_if_they_must_not_continue_in_place(session_job: SessionJob, undisturbed: Run) -> None:
    job = session_job
    for name in "ab":
        job.start(name, "--in-place=off", nnodes="2", CHECKPOINTS=str(job.directory / "checkpoints"))
    job.wait_for_world(2, "a", "b", timeout=START)
    os.kill(job.pids("b")[-1], signal.SIGKILL)
    job.assert_finished(undisturbed, "a", "b")
    assert len(job.pids("a")) == 2


def test_a_job_with_all_its_members_needed_waits_for_the_replacement(session_job: SessionJob, undisturbed: Run) -> None:
    job = session_job
    for name in "ab":
        job.start(name, nnodes="2")
    job.wait_for_world(2, "a", "b", timeout=START)
    os.kill(job.pids("b")[-1], signal.SIGKILL)
    job.assert_finished(undisturbed, "a", "b")
    assert (len(job.pids("a")), len(job.pids("b"))) == (1, 2)
    phases = [event["phases"] for event in job.agents[0].events if event["event"] == "change"]
    assert any(each["interrupt"] and each["form"] and each["agree"] and each["first-step"] for each in phases)
