"""The goodput that is read from `status.history` is that of the training's own log, step by step."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import pytest
from elasticjob_api import Condition, ConditionStatus, ConditionType, History, Progress, Status
from elasticjob_api.goodput import TimePart, goodput
from elasticjob_operator.policies.history import with_history
from elasticjob_operator.state import RendezvousView
from elasticjob_runtime.contract import PlanReason, PlanValue, ProgressValue, TransitionValue

from tests.unit.operator.builders import NOW, at, make_job, make_plan, make_status, make_view

CREATED = NOW.timestamp()
STEP, SAVE_EVERY, REPORT_SECONDS = 0.5, 40, 7.0
"""Seconds of a step, steps between checkpoints, and seconds between reports."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """One round of the training, in seconds since the job was created."""

    reason: PlanReason
    caused: float
    agreed: float
    first_step: float
    ends: float
    short_since: float | None = None
    """Since when too few worker pods were there."""


ROUNDS = (
    Round(reason=PlanReason.START, caused=20, agreed=24, first_step=30, ends=130.3),
    Round(reason=PlanReason.WORKER_FAILED, caused=130.3, agreed=131.5, first_step=137, ends=231.2),
    Round(reason=PlanReason.MEMBER_LOST, caused=231.2, agreed=283, first_step=290, ends=300, short_since=233),
    Round(reason=PlanReason.MEMBER_JOINED, caused=300, agreed=300.4, first_step=301, ends=400),
)

Line = tuple[float, int, int]
"""A line of the training's log: when which step of which round was done."""


def train() -> list[Line]:
    """Writes the log. Each round but the last, which continues in place, begins with the newest checkpoint."""
    lines: list[Line] = []
    step = 0
    for number, item in enumerate(ROUNDS, 1):
        if item.reason is not PlanReason.MEMBER_JOINED:
            step -= step % SAVE_EVERY
        now = item.first_step
        while now <= item.ends:
            step += 1
            lines.append((now, step, number))
            now += STEP
    return lines


def parts_of(lines: list[Line]) -> dict[TimePart, float]:
    """Read from the log alone."""
    seconds: dict[TimePart, float] = collections.defaultdict(float)
    best = 0
    for (before, reached, number), (now, step, later) in itertools.pairwise(lines):
        best = max(best, reached)
        if number == later:
            seconds[TimePart.PRODUCTIVE if step > best else TimePart.REPEATED] += now - before
    return seconds


def observe(lines: list[Line]) -> History:
    """What the operator records of it."""
    status = make_status(ConditionType.ACCEPTED)
    for number, item in enumerate(ROUNDS, 1):
        of_round = [line for line in lines if line[2] == number]
        earlier = [line for line in lines if line[2] < number]
        plan = dataclasses.replace(
            make_plan(number, reason=item.reason),
            created_at=CREATED + item.agreed,
            caused_at=0.0 if item.reason is PlanReason.START else CREATED + item.caused,
        )
        if item.short_since is not None:
            status = not_running(status, item.short_since)
        status = record(status, make_view(plan=plan), item.agreed)
        transition = TransitionValue(
            round=number,
            seconds=item.first_step - item.caused,
            phases={"plan": item.agreed - item.caused},
            step=of_round[0][1],
            steps_lost=earlier[-1][1] - of_round[0][1] + 1 if earlier else None,
        )
        reported_at = item.first_step
        for now, step, _ in of_round:
            if now >= reported_at:
                view = make_view(plan=plan, transition=transition, progress=progress(step, now, number))
                status = record(status, view, now)
                reported_at = now + REPORT_SECONDS
    end = status.model_copy(update={"conditions": make_status(ConditionType.SUCCEEDED).conditions})
    status = with_history(
        make_job(), status, end, make_view(plan=plan, progress=progress(lines[-1][1], lines[-1][0], 4)), at(400)
    )
    assert status.history is not None
    return status.history.read()


def progress(step: int, now: float, number: int) -> ProgressValue:
    return ProgressValue(step=step, round=number, steps_per_second=1 / STEP, updated_at=CREATED + now)


def record(before: Status, view: RendezvousView, now: float) -> Status:
    plan: PlanValue | None = view.plan
    assert plan is not None
    running = make_status(ConditionType.ACCEPTED, ConditionType.RUNNING)
    reported = view.progress
    update: dict[str, object] = {"conditions": running.conditions, "round": plan.round, "world_size": 4}
    if reported is not None:
        update["progress"] = Progress(step=reported.step, steps_per_second=2.0, updated_at=at(now))
    return with_history(make_job(), before, before.model_copy(update=update), view, at(now))


def not_running(status: Status, since: float) -> Status:
    missing = Condition(
        type="Running", status=ConditionStatus.FALSE, reason="WorkerLost", last_transition_time=at(since)
    )
    return status.model_copy(update={"conditions": (missing,)})


STALLED = Condition(type="Stalled", status=ConditionStatus.TRUE, reason="Hang", last_transition_time=at(160))


def test_a_hang_counts_as_soon_as_it_is_found_and_as_long_as_it_lasts_and_is_no_training_afterwards() -> None:
    plan, status = make_plan(1, size=4), make_status()
    for seconds in range(10, 101, 10):
        status = record(status, make_view(plan=plan, progress=progress(2 * seconds, seconds, 4)), seconds)
    view = make_view(plan=plan, progress=progress(200, 100, 4))
    hangs = status.model_copy(update={"conditions": [STALLED]})
    hangs = with_history(make_job(), status, hangs, view, at(160))
    assert hangs.goodput is not None
    assert hangs.goodput.hung == 60
    later = with_history(make_job(), hangs, hangs, view, at(3700))
    assert later.goodput is not None
    assert later.goodput.hung == 3600
    over = with_history(make_job(), later, later.model_copy(update={"conditions": []}), view, at(3760))
    assert over.history is not None
    found = goodput(over.history.read(), until=at(3760)).seconds
    assert found[TimePart.PRODUCTIVE] == pytest.approx(90, abs=1), "and not the hour without a step"


def test_the_goodput_of_a_training_is_that_of_its_log() -> None:
    lines = train()
    found, logged = goodput(observe(lines), since=NOW), parts_of(lines)
    assert logged[TimePart.REPEATED] > 10
    assert logged[TimePart.PRODUCTIVE] > 200
    expected = {
        **logged,
        TimePart.WAITING: 24 + 50,
        TimePart.FORMING: 1.2 + 1.8 + 0.4,
        TimePart.STARTING: 6 + 5.5 + 7 + 0.6,
        TimePart.SUSPENDED: 0,
        TimePart.HUNG: 0,
        TimePart.UNKNOWN: 0,
    }
    assert found.wall == pytest.approx(400)
    assert dict(found.seconds) == pytest.approx(expected, abs=3), "times of the history have whole seconds"
