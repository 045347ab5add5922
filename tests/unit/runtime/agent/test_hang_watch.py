"""What an agent says and does about a hang, from a real process that sleeps and what another member tells."""

from __future__ import annotations

import pathlib
import time
import types
from collections.abc import Callable
from typing import Any, cast

import pytest
from elasticjob_runtime.agent.evidence_exchange import Received
from elasticjob_runtime.agent.hangs import Finding, HangWatch
from elasticjob_runtime.contract import EvidenceValue, HangValue, PlanReason, PlanValue
from elasticjob_runtime.membership.culprit import Activity, RankEvidence, Stack
from elasticjob_runtime.membership.hang import Hang, HangLimits
from elasticjob_runtime.membership.shared_evidence import to_value
from elasticjob_runtime.membership.view import Plan

from hack.support import eventually
from tests.unit.runtime.agent.test_evidence import HANDLER, SLEEPS, running

WAITS = RankEvidence(stack=Stack(collective="barrier", place="main (train.py:40)"))
BUSY = RankEvidence(activity=Activity(cpu_ms=2730, switches=1390))
PLAN = Plan(
    value=PlanValue(
        round=3, attempt="3.a", reason=PlanReason.START, size=2, world_size=2, master_addr="a", master_port=1,
        leader="a", restart_count=0, nproc=1,
    ),
    mod_revision=1,
    rank=None,
)  # fmt: skip


class Group:
    """Of one worker process, rank 0's. The other one is on another machine."""

    def __init__(self, pid: int, error_file: str) -> None:
        self.failed: list[str] = []
        spec = types.SimpleNamespace(rank=0, local_rank=0, error_file=error_file)
        worker = types.SimpleNamespace(spec=spec, pid=pid, fail=self._fail)
        self.running, self.finished_ranks = (worker,), list[int]()
        self.view = types.SimpleNamespace(round=3)

    def _fail(self, _reason: str, text: str, _stacks: str) -> None:
        self.failed.append(text)


class Watched:
    def __init__(self, pid: int, error_file: str, *, restarts: bool) -> None:
        self.other = WAITS
        self.published: list[HangValue | None] = []
        self.group = Group(pid, error_file)
        self._now = 1000.0
        self._step = (10, 990.0)
        limits = HangLimits(restarts=restarts)
        self.watch = HangWatch(limits, cast(Any, self.group), "a", self.published.append, self._exchange)

    def _exchange(self, _value: EvidenceValue, on_all: Received | None) -> None:
        if on_all is not None:
            on_all({"b": to_value({1: self.other}, round_number=3, time=time.time())})

    def look(self) -> Finding:
        """At a hang, until something is found out."""
        self.watch.tick(Hang("no step for 60 s", final=False), self._step, self._now, PLAN)

        def tick() -> Finding | None:
            self._now = max(self._now, self.watch.deadline or 0.0) + 0.01
            return self.watch.tick(None, self._step, self._now, PLAN)

        found = eventually(tick, what="something is found out")
        assert found is not None
        return found

    def take_step(self) -> None:
        self._step = (11, self._now)
        self.watch.tick(None, self._step, self._now, PLAN)


@pytest.fixture
def watched(tmp_path: pathlib.Path) -> Any:
    with running(tmp_path, HANDLER + SLEEPS) as suspect:

        def watch(*, restarts: bool) -> Watched:
            return Watched(suspect.pid, suspect.error_file, restarts=restarts)

        yield watch


Watch = Callable[..., Watched]


def test_a_rank_that_sleeps_while_another_waits_in_a_collective_fails_with_its_line(watched: Watch) -> None:
    hang = watched(restarts=True)
    eventually(lambda: hang.look().restarts, what="the process sleeps")
    assert hang.group.failed[0] == (
        "hang: no step for 60 s: rank 0 is in waits (script.py:5), while rank 1 waits in barrier"
    )


def test_a_rank_that_sleeps_while_another_evaluates_goes_on(watched: Watch) -> None:
    hang = watched(restarts=True)
    hang.other = BUSY
    assert not hang.look().restarts
    assert hang.group.failed == []


def test_what_was_found_to_be_a_hang_is_one_until_the_next_step(watched: Watch) -> None:
    hang = watched(restarts=False)
    eventually(lambda: hang.look().culprit.ranks == (0,), what="the process sleeps")
    told = hang.published[-1]
    assert told is not None
    assert told.certain
    hang.other = BUSY
    hang.look()
    assert hang.published[-1] == told
    hang.take_step()
    assert hang.published[-1] is None
