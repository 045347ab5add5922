"""Replicas under real agents: one ends as a whole if it loses a process, starts again and joins; the others go on."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

from hack.support import eventually
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.replica_driver import SCRIPT, Trained
from tests.integration.runtime_session.session_job import START, SessionJob
from tests.integration.runtime_session.test_replica_sessions import alone

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ENVIRONMENT = {"KIND": "fsdp", "HIDDEN": "17", "EPOCHS": "40", "STEP_SECONDS": "0.05"}
STEPS = 400


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[SessionJob]:
    job = SessionJob(etcd, tmp_path, script=SCRIPT, environment=ENVIRONMENT)
    yield job
    job.close()


def test_replicas_continue_without_the_one_that_lost_a_process_and_it_comes_back(
    job: SessionJob, tmp_path: pathlib.Path
) -> None:
    for name in "abc":
        job.start(name, "--replica-size=1", "--nproc-per-node=2", nnodes="2:4")
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    os.kill(job.pids("b", 1)[-1], signal.SIGKILL)
    eventually(lambda: {size for _, size in job.steps("a")[-3:]} == {2}, 60, what="a and c train without b")
    eventually(lambda: len(job.pids("b", 0)) == len(job.pids("b", 1)) == 2, 60, what=f"b starts again\n{job.logs}")
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    for agent in job.agents:
        assert agent.exit_code(120.0) == 0, job.logs
    found = [Trained(name, [Run.read(tmp_path / f"{name}-{rank}") for rank in range(2)]) for name in "abc"]
    for replica in found:
        replica.assert_same(found[0])
        assert [rank.facts["committed"] for rank in replica.ranks] == [STEPS] * 2
    assert found[0].distance(alone(ENVIRONMENT)) < 1e-10
    assert [len(job.pids(name, rank)) for name in "ac" for rank in range(2)] == [1] * 4
