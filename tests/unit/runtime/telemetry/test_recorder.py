"""From views to events: what an agent records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticjob_runtime.contract import PlanReason, TransitionValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.view import Plan, View, Workers, WorkersState
from elasticjob_runtime.rendezvous.heartbeat import Heartbeats
from elasticjob_runtime.telemetry.event_log import EventLog
from elasticjob_runtime.telemetry.metrics import AgentState, Metrics
from elasticjob_runtime.telemetry.recorder import Recorder
from elasticjob_runtime.telemetry.transitions import WorkerReport

from tests.unit.runtime.membership.builders import fails, make_failure, make_plan, make_view, runs, suspicion

START = 1000.0


class Bench:
    """A Recorder on a clock of its own, and what it wrote."""

    def __init__(self, path: Path) -> None:
        self.now = START
        self.metrics = Metrics()
        self._path = path
        self._event_loop = EventLoop()
        self._log = EventLog("a", path)
        self.published: list[TransitionValue] = []
        heartbeats = Heartbeats(self._event_loop)
        self.recorder = Recorder(
            self._log, self.metrics, heartbeats, 1, lambda: self.now, on_transition=self.published.append
        )

    def observe(self, view: View, at: float) -> None:
        self.now = at
        self.recorder.observe(view, at)

    def events(self, kind: str) -> list[dict[str, Any]]:
        assert self._log.flush()
        return [event for line in self._path.read_text().splitlines() if (event := json.loads(line))["event"] == kind]

    def phases(self) -> list[tuple[str, str]]:
        return [(event["phase"], event["cause"]) for event in self.events("phase")]

    def close(self) -> None:
        self._event_loop.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "events")
    yield bench
    bench.close()


def planned(round_number: int, reason: PlanReason, caused_at: float, names: str = "abc") -> Plan:
    plan = make_plan(names, round_number=round_number)
    return dataclasses.replace(plan, value=dataclasses.replace(plan.value, reason=reason, caused_at=caused_at))


FIRST = planned(1, PlanReason.START, 0.0)


def begin(bench: Bench, plan: Plan = FIRST) -> None:
    bench.observe(make_view(plan=plan, workers=Workers()), START + 2)
    bench.recorder.starting()
    bench.observe(make_view(plan=plan), START + 3)


def train(bench: Bench, plan: Plan = FIRST) -> None:
    """Starts the first plan and reports its first step."""
    begin(bench, plan)
    bench.recorder.reported(WorkerReport(rank=0, round=1, at=START + 4, phase="step", step=1))


def suspected(*, closed: bool) -> View:
    one = suspicion("b", "a")
    value = dataclasses.replace(one.value, heard_at=START + 10, closed=closed)
    return make_view(plan=FIRST, store={"suspicions": (dataclasses.replace(one, value=value),)})


@pytest.mark.parametrize(("closed", "cause"), [(False, "MemberSilent"), (True, "MemberLost")])
def test_a_silent_member_is_told_from_one_whose_connection_is_closed(bench: Bench, closed: bool, cause: str) -> None:
    train(bench)
    bench.observe(suspected(closed=closed), START + 11)
    second = planned(2, PlanReason.MEMBER_LOST, START + 10, "ac")
    bench.observe(make_view(there="ac", plan=second, workers=runs(FIRST)), START + 12)
    assert bench.phases()[-2:] == [("detect", cause), ("plan", cause)]
    assert bench.events("phase")[-2]["seconds"] == 1.0
    bench.observe(make_view(there="ac", plan=second, store={"suspicions": ()}), START + 13)
    bench.recorder.starting()
    assert bench.metrics.restarts == {cause: 1}


def test_a_member_heard_again_is_recorded_as_a_false_alarm(bench: Bench) -> None:
    train(bench)
    bench.observe(suspected(closed=False), START + 11)
    bench.observe(make_view(plan=FIRST), START + 12)
    assert [event["end"] for event in bench.events("change")] == ["trained", "false-alarm"]


def test_the_planner_records_the_first_failure_of_the_job(bench: Bench) -> None:
    train(bench)
    own = make_failure("a", time=START + 10.2, message="lost a peer")
    first = make_failure("b", rank=1, time=START + 10.0)
    failed = dataclasses.replace(fails(FIRST), failure=own)
    bench.observe(make_view(plan=FIRST, workers=failed, failures=[own, first]), START + 10.3)
    bench.observe(make_view(plan=planned(2, PlanReason.WORKER_FAILED, START + 10.0), workers=failed), START + 10.4)
    fields = ("scope", "failed_member", "rank", "exit_code", "time")
    recorded = [tuple(event[field] for field in fields) for event in bench.events("failure")]
    assert recorded == [("member", "a", 0, 1, START + 10.2), ("job", "b", 1, 1, START + 10.0)]


def test_the_stop_phase_ends_when_all_old_worker_processes_have_ended(bench: Bench) -> None:
    train(bench)
    second = planned(2, PlanReason.MEMBER_JOINED, START + 20, "abcd")
    for at, state in ((20.1, WorkersState.RUNNING), (20.2, WorkersState.STOPPING), (20.6, WorkersState.NONE)):
        bench.observe(make_view(there="abcd", plan=second, workers=runs(FIRST, state)), START + at)
    (stop,) = [event for event in bench.events("phase") if event["phase"] == "stop"]
    assert (stop["seconds"], stop["since"], stop["round"]) == (0.4, 0.6, 2)


def test_a_spare_records_no_phases_of_plans_without_it(bench: Bench) -> None:
    other = planned(5, PlanReason.WORKER_FAILED, START - 50, "bc")
    bench.observe(make_view(there="abc", plan=dataclasses.replace(other, rank=None), workers=Workers()), START + 1)
    assert bench.events("phase") == []
    assert bench.metrics.state is AgentState.SPARE
    assert bench.metrics.rank is None


def test_rank_0s_agent_publishes_how_a_round_began(bench: Bench) -> None:
    train(bench)
    assert [(value.round, value.seconds, value.step) for value in bench.published] == [(1, 4.0, 1)]
    assert bench.published[0].phases["first-step"] == 2.0


def test_only_rank_0s_agent_publishes_how_a_round_began(bench: Bench) -> None:
    ranked = dataclasses.replace(FIRST, rank=dataclasses.replace(FIRST.rank, group_rank=1) if FIRST.rank else None)
    train(bench, ranked)
    assert len(bench.events("change")) == 1
    assert bench.published == []


def test_a_round_without_a_first_step_is_not_published(bench: Bench) -> None:
    begin(bench)
    bench.recorder.close(0, "over", None)
    assert bench.published == []


def test_a_worker_process_that_ends_before_the_others_is_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.observe(make_view(plan=(plan := make_plan("abc"))), START)
    for round_number in (2, 3):
        plan = make_plan("ab", round_number=round_number, finished=("c",))
        bench.observe(make_view(plan=plan, workers=runs(plan)), START + round_number)
    assert [event["members"] for event in bench.events("finished-early")] == [["c"]]
    assert "worker processes of c ended with code 0 while others were training" in caplog.text
