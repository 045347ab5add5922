"""A sharded training (FSDP2) under real agents: it loses a node and continues from its neighbour's copy, without a
disk; members join and leave, and no step is repeated; everything is stopped, and it continues from storage with another
number of processes."""

from __future__ import annotations

import os
import pathlib
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training import checkpoint

from hack.support import eventually
from tests.integration.runtime.agents import Agent, Job
from tests.unit.runtime.training.sharded.worlds import needs_fsdp2

pytestmark = [needs_fsdp2, pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = pathlib.Path(__file__).with_name("sharded_script.py")
STEPS = 150
START = 120.0
"""s for agents to import torch on a busy machine."""


class ShardedJob(Job):
    """Steps take 0.1 s until `hurry`."""

    def __init__(self, endpoint: str, directory: pathlib.Path) -> None:
        super().__init__(endpoint, directory)
        (directory / "slow").touch()

    def hurry(self) -> None:
        (self.directory / "slow").unlink(missing_ok=True)

    def begin(self, name: str, *flags: str, size: int | str, **environment: str) -> Agent:
        variables = {
            "OUTPUT": str(self.directory / f"{name}-{{local_rank}}"), "STEPS": str(STEPS),
            "SLOW": str(self.directory / "slow"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment,
        }  # fmt: skip
        return self.start(
            name, "--max-restarts", "5", *flags, nnodes=str(size), script=[str(SCRIPT)], environment=variables
        )

    def steps(self, name: str) -> list[tuple[int, int]]:
        """(committed steps, world size), in order."""
        path = self.directory / f"{name}-0.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), int(size)) for step, _, size in (line.partition(" ") for line in lines) if size]

    def pids(self, name: str, local_rank: int = 0) -> list[int]:
        path = self.directory / f"{name}-{local_rank}.begun"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def wait_for_step(self, at: int, *names: str) -> None:
        eventually(
            lambda: min(max(self.steps(name), default=(0, 0)) for name in names)[0] >= at,
            START, 0.01, f"step {at}\n{self.logs}",
        )  # fmt: skip

    @property
    def interval(self) -> int:
        """The largest one between snapshots, in steps."""
        return max((int(found) for found in re.findall(r"in memory in (\d+) steps", self.logs)), default=1)

    @property
    def leader(self) -> str:
        assert self.plan is not None
        return self.plan.leader

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.directory / f"{name}-0.pt")
        return found

    def continued_after(self, name: str, lines: int) -> int:
        """The step after which it continued, once it had taken so many."""
        return eventually(lambda: self.steps(name)[lines:], START, what=f"{name} trains again\n{self.logs}")[0][0] - 1


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
    agent = job.begin("u", "--nproc-per-node=3", size=1)
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
    agents = {name: job.begin(name, size=3) for name in "abc"}
    job.wait_for_step(20, "a", "b", "c")
    done, last = len(job.steps("a")), job.steps("a")[-1][0]
    agents.pop("c").process.kill()  # with its worker process, and all memory that it held
    agents["d"] = job.begin("d", size=3)
    continued = job.continued_after("a", done)
    assert 0 <= last + 1 - continued <= 2 * job.interval, f"{continued} of {last}\n{job.logs}"
    assert job.continued_after("d", 0) == continued
    assert "from the copy of a neighbour" in job.logs

    job.wait_for_step(continued + 20, *agents)
    done, last = len(job.steps("a")), job.steps("a")[-1][0]
    for name in agents:
        os.kill(job.pids(name)[-1], signal.SIGKILL)
    assert 0 <= last + 1 - job.continued_after("a", done) <= 2 * job.interval, job.logs
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
    a = job.begin("a", "--nproc-per-node=3", size=1, **variables)
    job.wait_for_step(25, "a")
    eventually(lambda: max(checkpoint.steps(folder), default=0) >= 20, START, what=job.logs)
    a.process.kill()
    (tmp_path / "next").mkdir()
    second = ShardedJob(etcd, tmp_path / "next")
    try:
        b = second.begin("b", "--nproc-per-node=2", size=1, **variables)
        assert second.continued_after("b", 0) >= 20
        second.hurry()
        assert b.exit_code(START) == 0, second.logs
        assert second.steps("b")[-1] == (STEPS, 2)
        assert_close(second.state("b"), undisturbed)
    finally:
        second.close()
