from __future__ import annotations

from elasticjob_api import ConditionType, Reason
from elasticjob_operator.policies.condition_updates import Cause
from elasticjob_operator.policies.resizing import degraded, resizing
from elasticjob_operator.policies.scale_up_delay import TargetSize
from elasticjob_operator.state import RendezvousView

from tests.unit.operator.builders import at, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.tables import table

RESIZING = ConditionType.RESIZING
UP, DOWN, DELAYED, DONE = Reason.SCALING_UP, Reason.SCALING_DOWN, Reason.SCALE_UP_DELAYED, Reason.RESIZED


MISSING = Cause(reason=Reason.UNSCHEDULABLE, message="digits-worker-3 is unschedulable.")


def planned(size: int) -> RendezvousView:
    return make_view(plan=make_plan(size=size))


@table(
    "wanted, aimed_at, was, view, ready, leaving, expected",
    {
        "at rest": (4, 4, False, planned(4), 4, 0, (False, DONE)),
        "more are wanted": (6, 4, False, planned(4), 4, 0, (True, UP)),
        "they come": (6, 6, True, planned(4), 5, 0, (True, UP)),
        "they are there, but do not train yet": (6, 6, True, planned(4), 6, 0, (True, UP)),
        "they train": (6, 6, True, planned(6), 6, 0, (False, DONE)),
        "fewer are wanted": (2, 4, False, planned(4), 4, 2, (True, DOWN)),
        "one is still leaving": (2, 2, True, planned(2), 2, 1, (True, DOWN)),
        "they are gone": (2, 2, True, planned(2), 2, 0, (False, DONE)),
        "a worker was lost: no change of size": (4, 4, False, planned(4), 3, 0, (False, DONE)),
        "the first start is none either": (4, None, False, planned(3), 3, 0, (False, DONE)),
        "a launcher that plans nothing: pods tell": (6, 6, True, make_view(), 6, 0, (False, DONE)),
    },
)
def test_resizing(
    wanted: int,
    aimed_at: int | None,
    was: bool,
    view: RendezvousView,
    ready: int,
    leaving: int,
    expected: tuple[bool, Reason],
) -> None:
    status = make_status(*([RESIZING] if was else []), desired_replicas=aimed_at)
    job = make_job(replicas=wanted, status=status)
    pods = [make_pod(9) for _ in range(leaving)]
    found = resizing(job, TargetSize(replicas=wanted, requested=wanted), view, ready=ready, leaving=pods, trained=True)
    assert found is not None
    assert (found.status, found.reason) == expected


def test_worker_pods_that_have_ended_before_the_others_degrade_the_job_by_name() -> None:
    view = make_view(plan=make_plan(size=2, finished=("digits-worker-1",)))
    found = degraded(make_job(replicas=3), view, ready=3, running=True, resizing=False)
    assert (found.status, found.reason) == (True, Reason.FINISHED_EARLY)
    assert "Worker processes of digits-worker-1 ended with code 0" in found.message
    assert not degraded(make_job(replicas=3), view, ready=3, running=False, resizing=False).status


def test_a_delayed_scale_up_has_its_time_in_the_message() -> None:
    growth = TargetSize(replicas=4, requested=6, scale_up_at=at(10))
    found = resizing(make_job(replicas=4), growth, planned(4), ready=4, trained=True)
    assert found is not None
    assert (found.status, found.reason) == (True, DELAYED)
    assert found.message.startswith("Scaling up to 6 worker pods is delayed")
    assert found.message.endswith("It begins at 2026-01-01T12:00:10Z.")


def test_a_job_that_never_trained_is_not_resizing() -> None:
    assert resizing(make_job(), TargetSize(replicas=4, requested=4), make_view(), ready=0, trained=False) is None


@table(
    "size, ready, runs, resizes, expected",
    {
        "all train": (4, 4, True, False, (False, Reason.COMPLETE)),
        "one is not in the plan": (3, 4, True, False, (True, Reason.UNSCHEDULABLE)),
        "one is not ready": (4, 3, True, False, (True, Reason.UNSCHEDULABLE)),
        "on the way to another size": (3, 3, True, True, (False, Reason.RESIZING)),
        "stands still: that is Restarting": (3, 3, False, False, (False, Reason.NOT_TRAINING)),
    },
)
def test_degraded(size: int, ready: int, runs: bool, resizes: bool, expected: tuple[bool, Reason]) -> None:
    found = degraded(make_job(), planned(size), ready=ready, running=runs, resizing=resizes, missing=MISSING)
    assert (found.status, found.reason) == expected
    assert ("digits-worker-3 is unschedulable." in found.message) is expected[0]


@table(
    "missing, reason",
    {
        "no cause is known": (None, Reason.WORKERS_MISSING),
        "gated": (
            Cause(reason=Reason.WAITING_FOR_WORKERS, message="digits-worker-3: SchedulingGated"),
            Reason.WORKERS_MISSING,
        ),
        "quota": (Cause(reason=Reason.POD_REJECTED, message="exceeded quota"), Reason.POD_REJECTED),
    },
)
def test_the_reason_is_why_workers_are_missing(missing: Cause | None, reason: Reason) -> None:
    found = degraded(make_job(), planned(3), ready=3, running=True, resizing=False, missing=missing)
    assert (found.status, found.reason) == (True, reason)
    assert found.message.startswith("3 of 4 worker pods are training.")
    growing = make_job(status=make_status(desired_replicas=2))
    resized = resizing(growing, TargetSize(replicas=4, requested=4), planned(3), ready=3, trained=True, missing=missing)
    assert resized is not None
    assert resized.reason is (Reason.SCALING_UP if reason is Reason.WORKERS_MISSING else reason)
