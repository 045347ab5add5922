"""Where processes must restart, or all members leave, a planned change repeats no step, however rare snapshots and
checkpoints are."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import ExitCode
from elasticjob_runtime.training import checkpoint

from hack.support import eventually
from tests.integration.runtime.agents import Agent
from tests.integration.runtime_session.conftest import SETTINGS, STEPS, Run
from tests.integration.runtime_session.session_job import START, SessionJob

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


class RestartingJob(SessionJob):
    """Snapshots in memory would be 1,000 steps apart, and so would checkpoints."""

    def begin(self, name: str, *flags: str, nnodes: str = "2:3", **environment: str) -> Agent:
        rare = {**SETTINGS, "SLOW_SECONDS": "0.3", "SNAPSHOT_EVERY": "1000", "EVERY": "1000"}
        return self.start(name, *(flags or ["--in-place=off"]), nnodes=nnodes, **{**rare, **environment})

    def assert_no_step_is_repeated(self, name: str) -> None:
        taken = [step for step, _ in self.steps(name)]
        assert taken == list(range(taken[0], taken[0] + len(taken))), f"{name}: {taken}; logs:\n{self.logs}"

    def finish_as(self, undisturbed: Run, *names: str) -> None:
        self.hurry()
        for name in names:
            agent = next(agent for agent in reversed(self.agents) if agent.name == name)
            assert agent.exit_code(START) == 0, self.logs
            Run.read(self.directory / f"{name}-0").assert_same_training(undisturbed)
            assert self.steps(name)[-1][0] == STEPS
            self.assert_no_step_is_repeated(name)


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[RestartingJob]:
    job = RestartingJob(etcd, tmp_path)
    yield job
    job.close()


def test_members_join_and_leave(job: RestartingJob, undisturbed: Run) -> None:
    job.begin("a")
    b = job.begin("b")
    job.wait_for_world(2, "a", "b", timeout=START)
    job.begin("c")
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    b.signal(signal.SIGTERM)
    job.wait_for_world(2, "a", "c", timeout=START)
    job.finish_as(undisturbed, "a", "c")
    assert len(job.pids("a")) == 3, "its process restarted twice"


def test_storage_serves_where_snapshots_in_memory_are_turned_off(
    job: RestartingJob, undisturbed: Run, tmp_path: pathlib.Path
) -> None:
    """At a planned change, and after a crash, which restarts all processes."""
    settings = {"CHECKPOINTS": str(tmp_path / "checkpoints"), "ELASTICJOB_MEMORY_SNAPSHOTS": "0"}
    job.begin("a", **settings)
    job.begin("b", **settings)
    job.wait_for_world(2, "a", "b", timeout=START)
    job.begin("c", **settings)
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    for name in "abc":
        job.assert_no_step_is_repeated(name)
    (saved,) = checkpoint.steps(tmp_path / "checkpoints")
    os.kill(job.pids("b")[-1], signal.SIGKILL)
    eventually(lambda: len(job.pids("a")) == 3, START, what=f"all processes restart; logs:\n{job.logs}")
    job.hurry()
    for agent in job.agents:
        assert agent.exit_code(START) == 0, job.logs
        Run.read(job.directory / f"{agent.name}-0").assert_same_training(undisturbed)
    assert [step for step, _ in job.steps("a")].count(saved) == 1, "it has continued after what was saved"


@pytest.mark.parametrize("in_place", ["auto", pytest.param("off", marks=pytest.mark.nightly)])
def test_storage_serves_when_all_members_leave_together(
    job: RestartingJob, etcd: str, tmp_path: pathlib.Path, undisturbed: Run, in_place: str
) -> None:
    """And with them, their memory: the job is suspended, say. In place, the last step may be interrupted."""
    folder = tmp_path / "checkpoints"
    flags, settings = f"--in-place={in_place}", {"CHECKPOINTS": str(folder)}
    first = [job.begin(name, flags, **settings) for name in "ab"]
    job.wait_for_world(2, "a", "b", timeout=START)
    for agent in first:
        agent.signal(signal.SIGTERM)
    assert [agent.exit_code(START) for agent in first] == [ExitCode.TERMINATED] * 2, job.logs
    last = max(job.steps(name)[-1][0] for name in "ab")
    (saved,) = checkpoint.steps(folder)
    assert last - (in_place == "auto") <= saved <= last, job.logs
    (tmp_path / "next").mkdir()
    second = RestartingJob(etcd, tmp_path / "next")
    try:
        for name in "ab":
            second.begin(name, flags, **settings)
        second.wait_for_world(2, "a", "b", timeout=START)
        assert second.steps("a")[0][0] == saved + 1
        second.finish_as(undisturbed, "a", "b")
    finally:
        second.close()
