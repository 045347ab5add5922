"""Ranks that are slow are named: two real agents, whose worker processes train with torch and gloo."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import StragglersValue

from hack.support import eventually
from tests.integration.runtime.agents import Job

SCRIPT = pathlib.Path(__file__).with_name("straggler_script.py")
CPU = pathlib.Path("/sys/fs/cgroup/cpu")


def train(job: Job, how: str) -> None:
    job.start_all("a b", nnodes="2", script=[str(SCRIPT), how, str(job.directory)])


def published(job: Job) -> StragglersValue | None:
    kv = job.client.get(job.keys.stragglers)
    return StragglersValue.from_json(kv.value) if kv else None


def named(job: Job) -> StragglersValue:
    def some() -> StragglersValue:
        found = published(job)
        assert found is not None
        assert found.stragglers
        return found

    try:
        return eventually(some, 120.0, what="a rank is named")
    except AssertionError as error:
        raise AssertionError(f"{error}; logs:\n{job.logs}") from error


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


@pytest.mark.parametrize("how", ["loader", "backward", pytest.param("by hand", marks=pytest.mark.nightly)])
def test_a_slow_rank_is_named(job: Job, how: str) -> None:
    train(job, how)
    found = named(job).stragglers
    assert [straggler.rank for straggler in found] == [1], job.logs
    plan = job.plan
    assert plan is not None
    assert found[0].member == next(member for member in ("a", "b") if member != plan.leader)
    assert "median of the others" in found[0].text


def test_a_member_that_reaches_its_cpu_limit_is_named_with_the_limit(job: Job) -> None:
    with cpu_limit(0.2) as group:
        train(job, "limit")
        pid_of = {rank: job.directory / f"pid-{rank}" for rank in range(2)}
        eventually(lambda: all(file.exists() for file in pid_of.values()), 120.0, what="training begins")
        plan = job.plan
        assert plan is not None
        slow = next(agent for agent in job.agents if agent.name != plan.leader)
        for pid in (str(slow.pid), pid_of[1].read_text()):
            (group / "cgroup.procs").write_text(pid)
        (straggler,) = named(job).stragglers
        assert straggler.member == slow.name
        assert straggler.signs == ["its CPU limit slows it down"], straggler.text
