"""A sharded training (FSDP2) under real agents: it loses a node and continues from its neighbour's copy, without a
disk; members join and leave, and no step is repeated; everything is stopped, and it continues from storage with another
number of processes."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training import checkpoint

from hack.support import eventually
from tests.integration.runtime_session.session_job import FSDP, START, SessionJob
from tests.unit.runtime.training.sharded.worlds import needs_fsdp2

pytestmark = [needs_fsdp2, pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = pathlib.Path(__file__).with_name("sharded_script.py")
STEPS = 150


class ShardedJob(SessionJob):
    """Steps take 0.1 s until `hurry`."""

    def __init__(self, endpoint: str, directory: pathlib.Path) -> None:
        super().__init__(endpoint, directory, script=SCRIPT, environment={"STEPS": str(STEPS)}, preload=FSDP)

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.directory / f"{name}-0.pt")
        return found


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[ShardedJob]:
    job = ShardedJob(etcd, tmp_path)
    yield job
    job.close()


@pytest.fixture(scope="module")
def undisturbed(etcd: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Three processes."""
    job = ShardedJob(etcd, tmp_path_factory.mktemp("undisturbed"))
    job.hurry()
    agent = job.start("u", "--nproc-per-node=3", nnodes="1")
    assert agent.exit_code(START) == 0, job.logs
    yield job.state("u")
    job.close()


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Bit by bit."""
    torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    """With another number of ranks, gradients are added up in another order."""
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_lost_node_and_then_all_processes_are_replaced_without_a_disk(
    job: ShardedJob, undisturbed: dict[str, Any]
) -> None:
    """From a neighbour's copy, and from what the agents hold."""
    agents = {name: job.start(name, nnodes="3") for name in "abc"}
    job.wait_for_step(20, "a", "b", "c")
    done, last = len(job.steps("a")), job.steps("a")[-1][0]
    agents.pop("c").process.kill()  # with its worker process, and all memory that it held
    agents["d"] = job.start("d", nnodes="3")
    continued = job.continued_after("a", done)
    assert 0 <= last + 1 - continued <= 2 * job.snapshot_interval, f"{continued} of {last}\n{job.logs}"
    assert job.continued_after("d", 0) == continued
    assert "from the copy of a neighbour" in job.logs

    job.wait_for_step(continued + 20, *agents)
    done, last = len(job.steps("a")), job.steps("a")[-1][0]
    for name in agents:
        os.kill(job.pids(name)[-1], signal.SIGKILL)
    assert 0 <= last + 1 - job.continued_after("a", done) <= 2 * job.snapshot_interval, job.logs
    job.hurry()
    for name, agent in agents.items():
        assert agent.exit_code(START) == 0, job.logs
        assert_equal(job.state(name), undisturbed)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "block",
    [
        pytest.param("1", id="it waits for saves"),
        pytest.param("0", id="saves in the background"),
    ],
)
def test_a_stopped_training_continues_from_storage_with_another_number_of_processes(
    job: ShardedJob, etcd: str, tmp_path: pathlib.Path, undisturbed: dict[str, Any], block: str
) -> None:
    folder = tmp_path / "checkpoints"
    variables = {"CHECKPOINTS": str(folder), "EVERY": "10", "BLOCK": block}
    a = job.start("a", "--nproc-per-node=3", nnodes="1", **variables)
    job.wait_for_step(25, "a")
    eventually(lambda: max(checkpoint.steps(folder), default=0) >= 20, START, what=job.logs)
    a.process.kill()
    (tmp_path / "next").mkdir()
    second = ShardedJob(etcd, tmp_path / "next")
    try:
        b = second.start("b", "--nproc-per-node=2", nnodes="1", **variables)
        assert second.continued_after("b", 0) >= 20
        second.hurry()
        assert b.exit_code(START) == 0, second.logs
        assert second.steps("b")[-1] == (STEPS, 2)
        assert_close(second.state("b"), undisturbed)
    finally:
        second.close()
