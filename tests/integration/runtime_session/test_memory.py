"""All worker processes of all agents are killed at once: the training continues from the agents' memory, without a
disk, and ends as if nothing had happened."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

from tests.integration.runtime_session.conftest import SETTINGS, STEPS, Run
from tests.integration.runtime_session.driver import SCRIPT
from tests.integration.runtime_session.session_job import SessionJob

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

LOGGING = f"""
import logging, runpy
logging.basicConfig(level=logging.INFO)
runpy.run_path({os.fspath(SCRIPT)!r}, run_name="__main__")
"""


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[SessionJob]:
    script = tmp_path / "logging_script.py"
    script.write_text(LOGGING)
    job = SessionJob(etcd, tmp_path, script=script, environment=SETTINGS)
    job.hurry()
    yield job
    job.close()


def kill_all(job: SessionJob, at: int) -> int:
    """Kills all worker processes after step `at`; returns the last step of any."""
    job.wait_for_step(at, "a", "b")
    pids = [job.pids(name)[-1] for name in "ab"]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # at once: neither sees the other one's end
        for pid in pids:
            os.kill(pid, number)
    return max(job.last_step(name) for name in "ab")


def test_training_continues_without_a_disk_when_all_processes_are_killed(job: SessionJob, undisturbed: Run) -> None:
    agents = [job.start(name, nnodes="2") for name in "ab"]
    repeated = []
    for at in (20, 60):
        last = kill_all(job, at)
        done = {name: len(job.steps(name)) for name in "ab"}
        after = {job.continued_after(name, done[name]) for name in "ab"}
        assert len(after) == 1, "all continue after the same step"
        repeated.append(last - after.pop())
    assert [agent.exit_code(90.0) for agent in agents] == [0, 0], job.logs
    assert all(0 <= item <= job.snapshot_interval for item in repeated), f"repeated {repeated}; {job.logs}"
    for name in "ab":
        Run.read(job.directory / f"{name}-0").assert_same_training(undisturbed)
        assert job.last_step(name) == STEPS
