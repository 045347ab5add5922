"""All worker processes of all agents are killed at once: the training continues from the agents' memory, without a
disk, and ends as if nothing had happened."""

from __future__ import annotations

import os
import pathlib
import re
import signal
from collections.abc import Iterator

import pytest

from hack.support import eventually
from tests.integration.runtime.agents import Agent, Job
from tests.integration.runtime_session.conftest import SETTINGS, STEPS, Run
from tests.integration.runtime_session.driver import SCRIPT

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

WRAPPER = f"""
import logging, os, runpy
logging.basicConfig(level=logging.INFO)
with open(os.environ["OUTPUT"] + ".begun", "a") as begun:
    begun.write(f"{{os.getpid()}} {{os.environ['ELASTICJOB_ROUND']}}\\n")
runpy.run_path({os.fspath(SCRIPT)!r}, run_name="__main__")
"""


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[Job]:
    job = Job(etcd, tmp_path)
    yield job
    job.close()


def start(job: Job, name: str, **environment: str) -> Agent:
    script = job.directory / "wrapper.py"
    script.write_text(WRAPPER)
    variables = {
        **SETTINGS, "OUTPUT": str(job.directory / name), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        **environment,
    }  # fmt: skip
    return job.start(name, "--max-restarts", "5", nnodes="2:2", script=[str(script)], environment=variables)


def begun(job: Job, name: str) -> list[int]:
    """The process of each beginning."""
    path = job.directory / f"{name}.begun"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def steps(job: Job, name: str) -> list[int]:
    path = job.directory / f"{name}.steps"
    return [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []


def kill_all(job: Job, at: int) -> int:
    """Kills all worker processes after step `at`; returns the last step of any."""
    eventually(
        lambda: min(max(steps(job, name), default=0) for name in "ab") >= at, 60.0, 0.005, f"step {at}\n{job.logs}"
    )
    pids = [begun(job, name)[-1] for name in "ab"]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # at once: neither sees the other one's end
        for pid in pids:
            os.kill(pid, number)
    return max(max(steps(job, name)) for name in "ab")


def next_step(job: Job, name: str, after: int) -> int:
    """The first step after so many lines of steps."""
    return eventually(lambda: steps(job, name)[after:], 60.0, what=f"{name} trains again")[0]


def interval(job: Job) -> int:
    """The largest interval between snapshots of any process, in steps."""
    return max((int(found) for found in re.findall(r"one in (\d+) steps", job.logs)), default=1)


def test_training_continues_without_a_disk_when_all_processes_are_killed(job: Job, undisturbed: Run) -> None:
    agents = [start(job, name) for name in "ab"]
    repeated = []
    for at in (20, 60):
        last = kill_all(job, at)
        done = {name: len(steps(job, name)) for name in "ab"}
        first = {next_step(job, name, done[name]) for name in "ab"}
        assert len(first) == 1, "all continue after the same step"
        repeated.append(last + 1 - first.pop())
    assert [agent.exit_code(90.0) for agent in agents] == [0, 0], job.logs
    assert all(0 <= each <= interval(job) for each in repeated), f"repeated {repeated}; {job.logs}"
    for name in "ab":
        Run.read(job.directory / name).assert_same_training(undisturbed)
        assert max(steps(job, name)) == STEPS
