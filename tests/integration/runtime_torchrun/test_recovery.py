"""torchrun with --rdzv-backend=etcd-v3: what users of elastic torchrun complain of, on real processes and a real etcd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.runtime_torchrun.conftest import PATIENCE, Job
from tests.support import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

Jobs = Callable[..., Job]


def test_a_crashed_worker_comes_back_also_the_one_that_had_the_master_store(jobs: Jobs) -> None:
    """torchrun's c10d backend restarts into the stale store of the round before, and never recovers."""
    job = jobs("2:2")
    a, b = job.start("a"), job.start("b")
    first = job.train("a", "b")
    follower, leader = sorted(("a", "b"), key=lambda name: -first[("a", "b").index(name)].rank)

    job.crash(follower)
    second = job.train("a", "b", without=first)
    assert [step.rank for step in second] == [step.rank for step in first], "ranks are stable"
    assert min(step.number for step in second) > 1, "it goes on from the checkpoint"

    job.crash(leader)
    job.train("a", "b", without=[*first, *second])

    job.stop()
    assert (a.exit_code(), b.exit_code()) == (0, 0)
    outcome = job.read("outcome")
    assert outcome is not None
    assert outcome["state"] == "succeeded"
    assert outcome["epoch"] == 3, "one new plan for each crash, no more"

    again = [job.start("a"), job.start("b")]  # `stop` is there still: they start, meet, and end
    assert [agent.exit_code() for agent in again] == [0, 0], "a run id can be used again"


def test_others_go_on_when_an_agent_is_killed_or_told_to_leave_and_take_in_a_new_one(jobs: Jobs) -> None:
    """torchrun: a lost node is noticed after 15 s and a SIGTERM never, last-call timeouts, RendezvousClosedError for the others."""
    job = jobs("2:3")
    a, b, c = (job.start(name) for name in "abc")
    three = job.train("a", "b", "c")

    c.kill()
    two = job.train("a", "b", without=three)

    d = job.start("d")
    joined = job.train("a", "b", "d", without=two)

    d.process.terminate()
    job.train("a", "b", without=[*three, *two, *joined])
    assert d.exit_code() != 0
    plan = job.read("plan")
    assert plan is not None
    assert plan["reason"] == "MemberLeft"

    job.stop()
    assert (a.exit_code(), b.exit_code()) == (0, 0)


def test_a_spare_waits_takes_over_and_ends_well_with_the_job(jobs: Jobs) -> None:
    """torchrun: a redundant node crashes with an AttributeError when the job ends."""
    job = jobs("1:1")
    a = job.start("a")
    job.train("a")
    b = job.start("b")
    eventually(lambda: "spare: plan 1 has 1 members" in b.said, PATIENCE)

    a.kill()
    job.train("b")

    c = job.start("c")
    eventually(lambda: "spare: plan 2 has 1 members" in c.said, PATIENCE)
    job.stop()
    assert (b.exit_code(), c.exit_code()) == (0, 0)


def test_the_job_fails_when_torch_has_no_restarts_left(jobs: Jobs) -> None:
    job = jobs("2:2", max_restarts=0)
    (job.folder / "fail-b").touch()
    a, b = job.start("a"), job.start("b")
    assert (a.exit_code(), b.exit_code()) == (1, 1)
    outcome = job.read("outcome")
    assert outcome is not None
    assert (outcome["state"], outcome["reason"]) == ("failed", "MaxRestartsExceeded")
