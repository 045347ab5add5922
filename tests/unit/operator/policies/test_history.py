"""What the history records of each change, that it stays bounded, and that it keeps the newest."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from elasticjob_api import Change, ConditionType, Failure, History, OptimizerSteps, Phases, Progress, Sample, Status
from elasticjob_api.conditions import Condition, ConditionStatus
from elasticjob_api.history import MAX_CHANGES, MAX_SAMPLES
from elasticjob_operator.policies.history import with_history
from elasticjob_operator.policies.samples import surplus_sample
from elasticjob_operator.state import RendezvousView
from elasticjob_runtime.contract import PlanReason, PlanValue, ProgressValue, TransitionValue
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operator.builders import NOW, UID, at, make_job, make_plan, make_status, make_view
from tests.unit.operator.tables import table

ACCEPTED, RUNNING, RESTARTING = ConditionType.ACCEPTED, ConditionType.RUNNING, ConditionType.RESTARTING
SUSPENDED, SUCCEEDED, FAILED = ConditionType.SUSPENDED, ConditionType.SUCCEEDED, ConditionType.FAILED
FAILURE = Failure(
    worker="digits-worker-1", rank=3, round=1, exit_code=1, reason="ApplicationError", message="ValueError: no\nmore"
)


def status(*true: ConditionType, run: int = 1, false: tuple[ConditionType, ...] = (), **fields: Any) -> Status:
    made = make_status(*true, **fields)
    cleared = tuple(
        Condition(type=item.value, status=ConditionStatus.FALSE, reason="JobResumed", last_transition_time=NOW)
        for item in false
    )
    known = {**made.to_api(), "rendezvous": {"id": f"{UID}-{run}"}}
    return Status.model_validate(known).model_copy(update={"conditions": (*made.conditions, *cleared)})


def trains(round_number: int, *, size: int = 4, run: int = 1, **fields: Any) -> Status:
    return status(ACCEPTED, RUNNING, run=run, round=round_number, world_size=size, desired_replicas=4, **fields)


def recorded(
    before: Status, after: Status, view: RendezvousView | None = None, *, seconds: float = 0, **job: Any
) -> Status:
    return with_history(make_job(**job), before, after, view or make_view(), at(seconds))


def history(found: Status) -> History:
    return found.history.read() if found.history is not None else History()


def changes(found: Status) -> list[tuple[str, str]]:
    return [(change.type, change.reason) for change in history(found).changes]


def newest(found: Status) -> Change:
    return history(found).changes[-1]


def planned(round_number: int, reason: PlanReason, *, size: int = 4, caused: float = 0.0) -> PlanValue:
    plan = make_plan(round_number, size=size, reason=reason)
    return dataclasses.replace(plan, caused_at=plan.created_at - caused if caused else 0.0, message="as planned")


def not_running(reason: str, seconds: float) -> Status:
    missing = Condition(type="Running", status=ConditionStatus.FALSE, reason=reason, last_transition_time=at(seconds))
    return status(ACCEPTED, round=1).model_copy(update={"conditions": (missing,)})


def scaled(size: int) -> Status:
    return trains(1).model_copy(update={"desired_replicas": size})


def told(type_: ConditionType, reason: str, message: str, *more: ConditionType) -> Status:
    return status(*more, type_, reason=reason, message=message, round=1)


STARTED = recorded(status(ACCEPTED), trains(1), make_view(plan=planned(1, PlanReason.START)))
AGAIN: dict[str, Any] = {"history": STARTED.history}


FIRST, TRAINS = planned(1, PlanReason.START), trains(1, **AGAIN)


@table(
    "before, after, plan, expected",
    {
        "start": (status(ACCEPTED), trains(1), FIRST, "Round Start: as planned"),
        "a worker process failed": (
            TRAINS,
            trains(2, last_failure=FAILURE),
            planned(2, PlanReason.WORKER_FAILED),
            "Round WorkerFailed: digits-worker-1, rank 3: ApplicationError, exit code 1: ValueError: no",
        ),
        "an older failure is not the cause": (
            trains(2, **AGAIN),
            trains(3, last_failure=FAILURE),
            planned(3, PlanReason.MEMBER_JOINED),
            "Round MemberJoined: as planned",
        ),
        "a pod was lost": pytest.param(
            TRAINS, trains(2, size=3), planned(2, PlanReason.MEMBER_LOST, size=3), "Round MemberLost: as planned"
        ),
        "rounds start again with an empty etcd": pytest.param(
            status(ACCEPTED, RESTARTING, round=5), trains(5), FIRST, "Round Start: as planned"
        ),
        "scaled up": (TRAINS, scaled(6), FIRST, "Scaled ScalingUp: Requested worker pods: 4 -> 6."),
        "scaled down": (TRAINS, scaled(2), FIRST, "Scaled ScalingDown: Requested worker pods: 4 -> 2."),
        "suspended": (
            TRAINS,
            told(SUSPENDED, "Suspended", "as wanted", ACCEPTED),
            None,
            "Suspended Suspended: as wanted",
        ),
        "resumed": pytest.param(
            status(ACCEPTED, SUSPENDED, round=1),
            status(ACCEPTED, run=2, false=(SUSPENDED,)),
            None,
            "Resumed JobResumed: ",
        ),
        "succeeded": (TRAINS, told(SUCCEEDED, "WorkersSucceeded", "all"), FIRST, "Succeeded WorkersSucceeded: all"),
        "failed": (TRAINS, told(FAILED, "MaxRestartsExceeded", "spent"), FIRST, "Failed MaxRestartsExceeded: spent"),
    },
)
def test_each_change_is_one_entry_with_its_cause(
    before: Status, after: Status, plan: PlanValue | None, expected: str
) -> None:
    known = len(changes(before))
    after = after.model_copy(update={"history": before.history})
    found = recorded(before, after, make_view(plan=plan))
    assert len(changes(found)) == known + 1
    last = newest(found)
    assert f"{last.type} {last.reason}: {last.message}" == expected
    assert recorded(found, found, make_view(plan=plan)) is found, "the next reconciliation adds nothing"


def test_an_entry_has_the_sizes_before_and_after_although_training_was_interrupted_between() -> None:
    interrupted = status(ACCEPTED, RESTARTING, round=1, history=STARTED.history)
    plan = planned(2, PlanReason.MEMBER_LOST, size=3, caused=1.5)
    found = newest(recorded(interrupted, trains(2, size=3, **AGAIN), make_view(plan=plan)))
    assert (found.world_size_before, found.world_size) == (4, 3)
    assert (found.workers_before, found.workers) == (4, 3)
    assert (found.round, found.form_seconds, found.time) == (2, 1.5, at(-60))


def test_a_job_that_trained_and_ended_while_no_operator_was_running_has_its_round_and_its_end() -> None:
    after = status(SUCCEEDED, reason="WorkersSucceeded", round=7)
    found = recorded(status(ACCEPTED), after, make_view(plan=planned(7, PlanReason.WORKER_FAILED)))
    assert changes(found) == [("Round", "WorkerFailed"), ("Succeeded", "WorkersSucceeded")]


def test_a_resumed_job_starts_again_with_round_one() -> None:
    suspended = status(ACCEPTED, SUSPENDED, round=4, **AGAIN)
    resumed = recorded(suspended, status(ACCEPTED, run=2, false=(SUSPENDED,), **AGAIN))
    found = recorded(
        resumed, trains(1, run=2, history=resumed.history), make_view(plan=planned(1, PlanReason.START)), seconds=9
    )
    assert changes(found)[1:] == [("Resumed", "JobResumed"), ("Round", "Start")]
    assert (newest(found).run, newest(found).world_size_before) == (2, 0)


def test_without_plans_a_restart_is_an_entry_with_the_reason_of_the_condition() -> None:
    job: dict[str, Any] = {"spec": {"rendezvous": {"backend": "c10d"}}}
    started = recorded(status(ACCEPTED), trains(1), **job)
    restarting = status(ACCEPTED, RESTARTING, reason="WorkerLost", message="gone", round=1, history=started.history)
    found = recorded(restarting, trains(1, history=started.history), **job)
    assert changes(found) == [("Round", "Start"), ("Round", "WorkerLost")]
    assert newest(found).message == "gone"


@pytest.mark.parametrize("skew", [3600, -3600])
def test_times_never_decrease_though_clocks_differ(skew: float) -> None:
    plan = dataclasses.replace(planned(2, PlanReason.MEMBER_LOST), created_at=NOW.timestamp() + skew)
    found = newest(recorded(trains(1, **AGAIN), trains(2, **AGAIN), make_view(plan=plan)))
    assert at(-60) <= found.time <= NOW


TRANSITION = TransitionValue(
    round=1, seconds=0.75, phases={"detect": 0.25, "first-step": 0.5, "no such": 1.0}, step=90, steps_lost=None
)


def test_what_the_agent_reports_of_a_round_completes_its_entry_once() -> None:
    view = make_view(plan=planned(1, PlanReason.START), transition=TRANSITION)
    found = recorded(STARTED, STARTED, view)
    assert newest(found).resume_seconds == 0.75
    phases = newest(found).phases
    assert phases is not None
    assert phases.to_api() == {"detect": 0.25, "firstStep": 0.5}
    assert len(changes(found)) == 1
    assert recorded(found, found, view) is found


def test_a_report_of_another_round_changes_nothing() -> None:
    view = make_view(transition=dataclasses.replace(TRANSITION, round=2))
    assert recorded(STARTED, STARTED, view) is STARTED


@table(
    "reported, last_step, expected",
    {
        "the agent knows": (12, 100, 12),
        "a rank 0 that has just joined: from the last progress to the first step": (None, 100, 11),
        "nothing is repeated": (None, 80, 0),
        "no progress was reported": (None, None, None),
    },
)
def test_steps_lost(reported: int | None, last_step: int | None, expected: int | None) -> None:
    before = trains(1, progress=Progress(step=last_step) if last_step is not None else None)
    started = recorded(before, before.model_copy(update={"round": 2}), make_view(plan=planned(2, PlanReason.RESIZED)))
    transition = dataclasses.replace(TRANSITION, round=2, steps_lost=reported)
    assert newest(recorded(started, started, make_view(transition=transition))).steps_lost == expected


def sampled(before: Status, step: int, seconds: float, *, skew: float = 0.0, round_number: int = 1) -> Status:
    progress = Progress(step=step, steps_per_second=2.0, updated_at=at(seconds + skew))
    view = make_view(
        plan=make_plan(), progress=ProgressValue(step=step, round=round_number, updated_at=NOW.timestamp())
    )
    return recorded(before, before.model_copy(update={"progress": progress}), view, seconds=seconds)


def test_progress_becomes_a_sample_with_the_size_of_its_group() -> None:
    found = sampled(STARTED, 10, 20.0)
    assert history(found).samples == ("2026-01-01T12:00:20Z 10 4 2",)
    assert history(found).progress == (Sample(time=at(20), step=10, world_size=4, steps_per_second=2.0),)
    assert recorded(found, found, make_view(plan=make_plan())) is found


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_a_wrong_clock_of_a_node_does_not_move_samples(skew: float) -> None:
    found = sampled(sampled(STARTED, 10, 20.0), 20, 40.0, skew=skew)
    assert [sample.time for sample in history(found).progress] == [at(20), at(40)]


def kept_of(seconds: Iterable[float]) -> Iterator[tuple[datetime.datetime, list[datetime.datetime]]]:
    """Each new sample, and the times that are kept with it."""
    kept: list[datetime.datetime] = []
    for second in seconds:
        new = at(second).replace(microsecond=0)
        kept.append(new)
        while (surplus := surplus_sample(kept)) is not None:
            del kept[surplus]
        yield new, kept


def test_samples_of_a_long_training_are_about_evenly_spaced() -> None:
    *_, (_, kept) = kept_of(range(0, 100_000, 10))
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(kept)]
    assert len(kept) == MAX_SAMPLES
    assert (kept[0], kept[-1]) == (NOW, at(99_990))
    assert max(gaps) <= 4 * 100_000 / MAX_SAMPLES


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_samples_are_bounded_and_keep_the_first_and_the_newest(seconds: list[float]) -> None:
    for new, kept in kept_of(sorted(seconds)):
        assert len(kept) <= MAX_SAMPLES
        assert kept[-1] == new
        assert kept[0] == at(min(seconds)).replace(microsecond=0)
        assert kept == sorted(set(kept))


def test_the_last_report_of_a_group_is_a_sample_of_its_size_although_the_next_one_is_planned() -> None:
    after = STARTED.model_copy(update={"progress": Progress(step=9, updated_at=at(1))})
    view = make_view(plan=make_plan(2, size=3), progress=ProgressValue(step=9, round=1))
    assert [sample.world_size for sample in history(recorded(STARTED, after, view, seconds=2)).progress] == [4]


def test_the_newest_of_two_reports_in_a_second_is_the_sample() -> None:
    found = sampled(sampled(STARTED, 10, 20.0), 11, 20.5)
    assert [sample.step for sample in history(found).progress] == [11]


def test_the_oldest_changes_are_dropped_and_counted_by_reason() -> None:
    found = STARTED
    for round_number in range(2, MAX_CHANGES + 11):
        view = make_view(plan=planned(round_number, PlanReason.WORKER_FAILED))
        found = recorded(found, trains(round_number, history=found.history), view)
    assert [change.round for change in history(found).changes] == list(range(11, MAX_CHANGES + 11))
    assert history(found).dropped == {"Start": 1, "WorkerFailed": 9}


@table(
    "before, expected",
    {
        "it trained until the cause": (trains(1), None),
        "pods were missing for some of the time": (not_running("WorkerLost", -70), 10.0),
        "they were missing before": (not_running("Unschedulable", -100), 30.0),
        "enough pods were there": (not_running("WaitingForRendezvous", -70), None),
    },
)
def test_a_round_says_how_long_worker_pods_were_missing(before: Status, expected: float | None) -> None:
    before = before.model_copy(update={"history": STARTED.history})
    plan = planned(2, PlanReason.MEMBER_LOST, caused=30.0)
    found = newest(recorded(before, trains(2, **AGAIN), make_view(plan=plan)))
    assert (found.form_seconds, found.wait_seconds) == (30.0, expected)


def test_the_kind_of_a_failure_is_told_with_what_it_caused() -> None:
    hang = FAILURE.model_copy(update={"reason": "Hang"})
    view = make_view(plan=planned(2, PlanReason.WORKER_FAILED))
    failed = recorded(trains(1, **AGAIN), trains(2, last_failure=hang, **AGAIN), view)
    assert newest(failed).failure == "Hang"
    ended = status(FAILED, reason="MaxRestartsExceeded", round=2, last_failure=hang.model_copy(update={"round": 2}))
    assert newest(recorded(failed, ended.model_copy(update={"history": failed.history}))).failure == "Hang"
    lost = make_view(plan=planned(3, PlanReason.MEMBER_JOINED))
    joined = recorded(failed, trains(3, last_failure=hang, history=failed.history), lost)
    assert newest(joined).failure is None


def test_the_goodput_is_written_with_changes_and_every_ten_minutes() -> None:
    assert STARTED.goodput is not None
    assert STARTED.goodput.updated_at == NOW
    found, written = STARTED, []
    for seconds in range(20, 1300, 20):
        found = sampled(found, seconds, seconds)
        assert found.goodput is not None
        written.append(found.goodput.updated_at)
    assert sorted(set(written)) == [NOW, at(600), at(1200)]
    change = recorded(
        found, trains(2, history=found.history), make_view(plan=planned(2, PlanReason.RESIZED)), seconds=1300
    )
    assert change.goodput is not None
    assert change.goodput.updated_at == at(1300)
    assert (change.goodput.productive or 0) > 1000


def test_counted_optimizer_steps_become_samples() -> None:
    counted = OptimizerSteps(count=70, per_second=1.5, updated_at=at(20))
    view = make_view(plan=make_plan())
    found = recorded(STARTED, STARTED.model_copy(update={"optimizer_steps": counted}), view, seconds=21)
    assert history(found).samples == ("2026-01-01T12:00:20Z 70 4 1.5 counted",)
    passes = counted.model_copy(update={"count": 0, "backward_passes": 70})
    found = recorded(STARTED, STARTED.model_copy(update={"optimizer_steps": passes}), view, seconds=21)
    assert history(found).samples == (), "backward passes are no steps"
    assert recorded(found, found, view, seconds=30) is found


def test_an_older_failure_is_not_the_cause_of_a_lost_pod() -> None:
    second = make_view(plan=planned(2, PlanReason.WORKER_FAILED))
    failed = recorded(STARTED, trains(2, last_failure=FAILURE, **AGAIN), second)
    third = make_view(plan=planned(3, PlanReason.MEMBER_LOST))
    found = recorded(failed, trains(3, last_failure=FAILURE, history=failed.history), third)
    assert newest(found).message == "as planned"


@pytest.mark.parametrize(("failed_at", "is_cause"), [(-60, False), (20, True), (None, True)])
def test_failure_of_an_earlier_run_is_not_the_cause_although_the_rounds_match(
    failed_at: float | None, is_cause: bool
) -> None:
    suspended = status(ACCEPTED, SUSPENDED, round=4, **AGAIN)
    resumed = recorded(suspended, status(ACCEPTED, run=2, false=(SUSPENDED,), history=suspended.history), seconds=10)
    first = make_view(plan=planned(1, PlanReason.START))
    started = recorded(resumed, trains(1, run=2, history=resumed.history), first, seconds=12)
    failure = FAILURE.model_copy(update={"time": None if failed_at is None else at(failed_at)})
    shrunk = make_view(plan=planned(2, PlanReason.MEMBER_LEFT))
    found = recorded(started, trains(2, run=2, last_failure=failure, history=started.history), shrunk, seconds=30)
    assert (newest(found).message, newest(found).failure) == (
        (f"digits-worker-1, rank 3: {FAILURE.cause}", "ApplicationError") if is_cause else ("as planned", None)
    )


STEPS = st.sampled_from(["round", "restart", "scale", "suspend", "resume", "progress", "quiet", "operator"])


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=150))
def test_history_is_bounded_and_never_loses_or_doubles_the_newest(steps: list[str]) -> None:
    """Whatever happens, and wherever the operator is restarted."""
    written, expected, now, round_number, run, wanted, step = status(ACCEPTED), 0, 0.0, 0, 1, 4, 0
    for name in steps:
        now += 7.0
        view = make_view(plan=make_plan(max(1, round_number)))
        desired, known = written, expected
        suspended = written.is_true(SUSPENDED)
        if name in ("round", "restart") and not suspended:
            round_number, expected = round_number + 1, expected + 1
            view = make_view(plan=make_plan(round_number, reason=PlanReason.WORKER_FAILED))
            desired = trains(round_number, run=run, progress=written.progress)
            expected += written.desired_replicas not in (None, 4)
            wanted = 4
        elif name == "scale" and written.desired_replicas is not None:
            wanted, expected = wanted + 1, expected + 1
            desired = written.model_copy(update={"desired_replicas": wanted})
        elif name == "suspend" and not suspended:
            desired, expected = status(ACCEPTED, SUSPENDED, run=run, round=round_number), expected + 1
        elif name == "resume" and suspended:
            run, round_number, expected = run + 1, 0, expected + 1
            desired = status(ACCEPTED, run=run, false=(SUSPENDED,))
        elif name == "progress" and round_number:
            step += 1
            desired = written.model_copy(update={"progress": Progress(step=step, updated_at=at(now))})
        elif name == "operator":
            written = desired = Status.model_validate(written.to_api())
        desired = desired.model_copy(update={"history": written.history})
        found = recorded(written, desired, view, seconds=now)
        kept = history(found)
        assert len(kept.changes) <= MAX_CHANGES
        assert len(kept.samples) <= MAX_SAMPLES
        assert len(kept.changes) + kept.dropped_changes == expected
        if expected > known:
            assert kept.changes[-1].time == at(now).replace(microsecond=0) or kept.changes[-1].type == "Round"
        if name == "progress" and round_number:
            assert kept.progress[-1].step == step
        written = found


def test_the_largest_history_fits_into_a_small_part_of_an_object() -> None:
    """etcd accepts 1.5 MiB."""
    change = Change(
        time=NOW, type="Round", reason="WorkerFailed", message="x" * 999, run=9, round=9999, world_size_before=8000,
        world_size=8000, workers_before=1000, workers=1000, restarts=100, step=10**9, steps_lost=10**6,
        form_seconds=1.23456, resume_seconds=12.3456,
        phases=Phases.model_validate(dict.fromkeys(Phases.model_fields, 1.23456)),
    )  # fmt: skip
    sample = Sample(time=NOW, step=10**9, world_size=8000, steps_per_second=1.234567)
    largest = History(changes=(change,) * MAX_CHANGES, samples=(str(sample),) * MAX_SAMPLES)
    assert len(largest.model_dump_json(by_alias=True, exclude_none=True)) < 48 * 1024


def test_now_is_the_time_of_a_change_without_a_plan() -> None:
    found = recorded(trains(1), status(FAILED, round=1), seconds=33.4)
    assert newest(found).time == at(33.4).replace(microsecond=0)
    assert newest(found).time.tzinfo is datetime.timezone.utc
