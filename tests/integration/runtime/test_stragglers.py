"""Ranks that are slow are named: two real agents, whose worker processes train with torch and gloo."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import PaceValue, Straggler, StragglersValue
from elasticjob_runtime.membership.stragglers import THROTTLED

from hack.support import eventually
from tests.integration.runtime.agents import Job

SCRIPT = pathlib.Path(__file__).with_name("straggler_script.py")
CPU = pathlib.Path("/sys/fs/cgroup/cpu")


def train(job: Job, mode: str) -> None:
    job.start_all("a b", nnodes="2", script=[str(SCRIPT), mode, str(job.directory)])


def set_slow(job: Job, rank: int, how: str) -> None:
    file = job.directory / "slow"
    file.with_suffix(".new").write_text(f"{rank} {how}")
    file.with_suffix(".new").rename(file)


def published(job: Job) -> StragglersValue | None:
    kv = job.client.get(job.keys.stragglers)
    return StragglersValue.from_json(kv.value) if kv else None


def named(job: Job, rank: int) -> Straggler:
    """This rank, once no other one is named."""

    def only_this() -> Straggler:
        found = published(job)
        assert found is not None
        assert [straggler.rank for straggler in found.stragglers] == [rank]
        return found.stragglers[0]

    return eventually(only_this, 120.0, what=lambda: f"rank {rank} is named; logs:\n{job.logs}")


@contextlib.contextmanager
def cpu_limit(share: float) -> Iterator[pathlib.Path]:
    """A cgroup with a limit, in cores."""
    group = CPU / f"elasticjob-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text(str(int(share * 100_000)))
    except OSError as error:
        pytest.skip(f"needs root and the cpu controller of cgroup v1: {error}")
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (CPU / "cgroup.procs").write_text(pid)
        group.rmdir()


@pytest.mark.parametrize("mode", ["DDP", pytest.param("by hand", marks=pytest.mark.nightly)])
def test_a_slow_rank_is_named(job: Job, mode: str) -> None:
    """As long as it is slow: then another one is."""
    set_slow(job, 1, "loader")
    train(job, mode)
    first = named(job, 1)
    set_slow(job, 0, "backward" if mode == "DDP" else "loader")
    second = named(job, 0)
    plan = job.plan
    assert plan is not None
    assert (first.member == plan.leader, second.member == plan.leader) == (False, True)
    assert all("median of the others" in straggler.text for straggler in (first, second))


def test_a_member_knows_that_it_reaches_its_cpu_limit(job: Job) -> None:
    """Also on a busy machine, where the others are no faster."""
    set_slow(job, -1, "loader")
    with cpu_limit(0.1) as group:
        train(job, "DDP")
        pid_of = {rank: job.directory / f"pid-{rank}" for rank in range(2)}
        eventually(lambda: all(file.exists() for file in pid_of.values()), 120.0, what="training begins")
        plan = job.plan
        assert plan is not None
        slow = next(agent for agent in job.agents if agent.name != plan.leader)
        for pid in (str(slow.pid), pid_of[1].read_text()):
            (group / "cgroup.procs").write_text(pid)

        def is_throttled() -> bool:
            kv = job.client.get(job.keys.pace(slow.name))
            return kv is not None and PaceValue.from_json(kv.value).throttled >= THROTTLED

        eventually(is_throttled, 120.0, what=lambda: f"{slow.name} is throttled; logs:\n{job.logs}")
