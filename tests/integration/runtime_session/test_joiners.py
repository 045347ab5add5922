"""A member that joins cannot hold up or end a training, neither by being slow nor by failing.

The defaults are short, for every run of the tests. The times that people meet:

    export ELASTICJOB_JOINER_SECONDS=200 ELASTICJOB_CRASH_SECONDS=600
    pytest -s tests/integration/runtime_session/test_joiners.py
"""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
import time
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import ExitCode, PlanReason, PlanValue, UnreadyValue
from elasticjob_runtime.membership.unready import UNREADY_SECONDS

from hack.support import eventually
from tests.integration.runtime.agents import QUICK, Agent
from tests.integration.runtime_session.session_job import START, SessionJob

HELD = float(os.environ.get("ELASTICJOB_JOINER_SECONDS", "3"))
"""s that a joiner's script takes before its session, or longer, until it is told that it is not ready."""
CRASHES = float(os.environ.get("ELASTICJOB_CRASH_SECONDS", "10"))
"""s for which a joiner's script crashes as it starts."""
SCALED = f"{QUICK},join_backoff={0.05 if CRASHES < 60 else 5}"

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(300 + HELD + CRASHES)]


@pytest.fixture
def four(etcd: str, tmp_path: pathlib.Path) -> Iterator[SessionJob]:
    """Four members, which train; a fifth may join."""
    job = SessionJob(etcd, tmp_path, environment={"EPOCHS": "1000"})
    for name in "abcd":
        job.start(name, "--max-restarts=0", nnodes="2:5", conf=SCALED)
    job.wait_for_world(4, *"abcd", timeout=START)
    yield job
    job.close()


def longest_pause(job: SessionJob, name: str, since: float) -> float:
    """The longest time between two steps of a member, in seconds."""
    lines = (job.directory / f"{name}-0.steps").read_text().splitlines()
    times = [at for at in (float(line.split()[0]) for line in lines if line.count(" ") == 2) if at >= since]
    return max(after - before for before, after in itertools.pairwise(times))


def plan_of(job: SessionJob) -> PlanValue:
    plan = job.plan
    assert plan is not None
    return plan


def report(job: SessionJob, what: str, began: float) -> None:
    pauses = {name: round(longest_pause(job, name, began), 3) for name in "abcd"}
    print(
        f"{what}: {time.monotonic() - began:.0f} s, longest time between two steps {pauses}, round {plan_of(job).round}"
    )


def test_a_joiner_costs_the_others_nothing(four: SessionJob) -> None:
    """However it fails: the job has no restarts."""
    is_slow_to_start(four)
    crashes_as_it_starts(four)
    is_killed_before_its_first_step(four)
    assert plan_of(four).restart_count == 0
    assert [len(four.pids(name)) for name in "abcd"] == [1] * 4
    assert all(agent.process.poll() is None for agent in four.agents[:4])


def leaves(four: SessionJob, joiner: Agent) -> None:
    joiner.signal(signal.SIGTERM)
    joiner.exit_code(START)
    four.wait_for_world(4, *"abcd", timeout=START)


def is_slow_to_start(four: SessionJob) -> None:
    hold, began, before = four.directory / "hold", time.monotonic(), plan_of(four)
    hold.touch()
    joiner = four.start("e", "--max-restarts=0", nnodes="2:5", conf=SCALED, HOLD=str(hold))
    eventually(lambda: four.pids("e"), START, what=f"e starts its process; logs:\n{four.logs}")
    steps = len(four.steps("a"))
    told = eventually(
        lambda: four.client.get(four.keys.unready), UNREADY_SECONDS + 30, what="it is told who is not ready"
    )
    assert told is not None
    assert UnreadyValue.from_json(told.value).members == ["e"]
    time.sleep(max(0.0, HELD - UNREADY_SECONDS))
    eventually(lambda: len(four.steps("a")) > steps + 3, 30, what="the others train")
    assert plan_of(four).round == before.round, "they have formed another world"
    report(four, "while a joiner starts", began)
    hold.unlink()
    four.wait_for_world(5, *"abcde")
    report(four, "with its join", began)
    eventually(lambda: four.client.get(four.keys.unready) is None, 30, what="all are ready")
    assert joiner.process.poll() is None
    assert len(four.pids("e")) == 1
    leaves(four, joiner)


def crashes_as_it_starts(four: SessionJob) -> None:
    """Its agents are replaced as the operator does."""
    crash, began, before = four.directory / "crash", time.monotonic(), plan_of(four)
    crash.touch()
    ends: list[int] = []
    joiner = four.start("f", "--max-restarts=0", nnodes="2:5", conf=SCALED, CRASH=str(crash))
    while time.monotonic() < began + CRASHES or not ends:
        if joiner.process.poll() is not None:
            ends.append(joiner.exit_code())
            joiner = four.start("f", "--max-restarts=0", nnodes="2:5", conf=SCALED, CRASH=str(crash))
        assert time.monotonic() < began + CRASHES + START, four.logs
        time.sleep(0.1)
    assert set(ends) == {ExitCode.CANNOT_JOIN}, four.logs
    assert "this machine is broken" in four.logs
    assert plan_of(four).round == before.round, "they have formed another world"
    report(four, f"while a joiner crashed {len(four.pids('f'))} times, {len(ends)} agents", began)
    crash.unlink()
    four.wait_for_world(5, *"abcdf", timeout=START)
    leaves(four, next(agent for agent in reversed(four.agents) if agent.name == "f"))


def is_killed_before_its_first_step(four: SessionJob) -> None:
    """It has been in the plan: its process is killed as soon as the others have a world with it."""
    began = time.monotonic()
    four.start("g", "--max-restarts=0", nnodes="2:5", SLOW_SECONDS="60")
    eventually(lambda: plan_of(four).size == 5, START, what="g joins")
    os.kill(four.pids("g")[-1], signal.SIGKILL)

    def go_on() -> bool:
        assert plan_of(four).reason is PlanReason.MEMBER_LOST, four.logs
        return True

    eventually(go_on, 30)
    four.wait_for_world(4, *"abcd")
    report(four, "a joiner is killed before its first step", began)
