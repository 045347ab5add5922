"""From views to events: what an agent writes down of what it sees."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticjob_runtime.contract import PlanReason
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.view import (
    Plan,
    Suspicion,
    View,
    Workers,
    WorkersState,
)
from elasticjob_runtime.rendezvous.heartbeat import Heartbeats
from elasticjob_runtime.telemetry.event_log import EventLog
from elasticjob_runtime.telemetry.metrics import Metrics, State
from elasticjob_runtime.telemetry.recorder import Recorder
from elasticjob_runtime.telemetry.transitions import WorkerReport

from tests.unit.runtime.membership.builders import fails, make_failure, make_plan, make_view, runs, suspicion

START = 1000.0


class Desk:
    """A chronicle whose clock is turned by hand, and what it wrote."""

    def __init__(self, path: Path) -> None:
        self.now = START
        self.metrics = Metrics()
        self._path = path
        self._event_loop = EventLoop()
        self._timeline = EventLog("a", path)
        self.chronicle = Recorder(self._timeline, self.metrics, Heartbeats(self._event_loop), 1, lambda: self.now)

    def sees(self, view: View, at: float) -> None:
        self.now = at
        self.chronicle.observe(view, at)

    def events(self, kind: str) -> list[dict[str, Any]]:
        assert self._timeline.flush()
        return [event for line in self._path.read_text().splitlines() if (event := json.loads(line))["event"] == kind]

    def phases(self) -> list[tuple[str, str]]:
        return [(event["phase"], event["cause"]) for event in self.events("phase")]

    def close(self) -> None:
        self._event_loop.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "events")
    yield desk
    desk.close()


def planned(round_number: int, reason: PlanReason, caused_at: float, names: str = "abc") -> Plan:
    plan = make_plan(names, round_number=round_number)
    return dataclasses.replace(plan, value=dataclasses.replace(plan.value, reason=reason, caused_at=caused_at))


FIRST = planned(1, PlanReason.START, 0.0)


def train(desk: Desk) -> None:
    """The first plan trains."""
    desk.sees(make_view(plan=FIRST, workers=Workers()), START + 2)
    desk.chronicle.starting()
    desk.sees(make_view(plan=FIRST), START + 3)
    desk.chronicle.reported(WorkerReport(rank=0, round=1, at=START + 4, phase="step", step=1))


def silent_since(at: float, *, closed: bool) -> Suspicion:
    one = suspicion("b", "a")
    return dataclasses.replace(one, value=dataclasses.replace(one.value, heard_at=at, closed=closed))


def test_a_member_that_fell_silent_is_not_one_whose_connection_was_closed(desk: Desk) -> None:
    train(desk)
    desk.sees(make_view(plan=FIRST, store={"suspicions": (silent_since(START + 10, closed=False),)}), START + 11)
    second = planned(2, PlanReason.MEMBER_LOST, START + 10, "ac")
    desk.sees(make_view(there="ac", plan=second, workers=runs(FIRST)), START + 12)
    assert desk.phases()[-2:] == [("detect", "MemberSilent"), ("plan", "MemberSilent")]
    assert desk.events("phase")[-2]["seconds"] == 1.0
    desk.sees(make_view(there="ac", plan=second, store={"suspicions": ()}), START + 13)
    desk.chronicle.starting()
    assert desk.metrics.restarts == {"MemberSilent": 1}


def test_a_closed_connection_is_a_lost_member(desk: Desk) -> None:
    train(desk)
    desk.sees(make_view(plan=FIRST, store={"suspicions": (silent_since(START + 10, closed=True),)}), START + 10.1)
    desk.sees(
        make_view(there="ac", plan=planned(2, PlanReason.MEMBER_LOST, START + 10, "ac"), workers=runs(FIRST)),
        START + 10.2,
    )
    assert desk.phases()[-2:] == [("detect", "MemberLost"), ("plan", "MemberLost")]


def test_a_member_that_is_heard_again_was_a_false_alarm(desk: Desk) -> None:
    train(desk)
    desk.sees(make_view(plan=FIRST, store={"suspicions": (silent_since(START + 10, closed=False),)}), START + 11)
    desk.sees(make_view(plan=FIRST), START + 12)
    assert [event["end"] for event in desk.events("change")] == ["trained", "false-alarm"]


def test_the_first_failure_of_the_job_is_told_by_who_knows_all(desk: Desk) -> None:
    train(desk)
    own, first = (
        make_failure("a", time=START + 10.2, message="lost a peer"),
        make_failure("b", rank=1, time=START + 10.0),
    )
    failed = dataclasses.replace(fails(FIRST), failure=own)
    desk.sees(make_view(plan=FIRST, workers=failed, failures=[own, first]), START + 10.3)
    desk.sees(make_view(plan=planned(2, PlanReason.WORKER_FAILED, START + 10.0), workers=failed), START + 10.4)
    told = [
        (event["scope"], event["failed_member"], event["rank"], event["exit_code"]) for event in desk.events("failure")
    ]
    assert told == [("member", "a", 0, 1), ("job", "b", 1, 1)]
    assert [event["time"] for event in desk.events("failure")] == [START + 10.2, START + 10.0]


def test_old_workers_are_stopped_from_the_first_word_to_their_end(desk: Desk) -> None:
    train(desk)
    second = planned(2, PlanReason.MEMBER_JOINED, START + 20, "abcd")
    for at, state in ((20.1, WorkersState.RUNNING), (20.2, WorkersState.STOPPING), (20.6, WorkersState.NONE)):
        desk.sees(make_view(there="abcd", plan=second, workers=runs(FIRST, state)), START + at)
    (stop,) = [event for event in desk.events("phase") if event["phase"] == "stop"]
    assert (stop["seconds"], stop["since"], stop["round"]) == (0.4, 0.6, 2)


def test_a_newcomer_is_not_concerned_by_the_plans_of_others(desk: Desk) -> None:
    other = planned(5, PlanReason.WORKER_FAILED, START - 50, "bc")
    desk.sees(make_view(there="abc", plan=dataclasses.replace(other, rank=None), workers=Workers()), START + 1)
    assert desk.events("phase") == []
    assert desk.metrics.state is State.SPARE
    assert desk.metrics.rank is None
