from __future__ import annotations

import dataclasses

import pytest
from elasticjob_api import ConditionType, Progress, Reason
from elasticjob_operator.policies.stalling import later, stalled
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.contract import HangValue, ProgressValue

from tests.unit.operator.builders import NOW, at, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.tables import table


@table(
    "seen, speed, round_number, connectivity, running, expected",
    {
        "a step a minute ago": (-59, 1.0, 2, Connectivity.REACHABLE, True, False),
        "none for a minute": (-60, 1.0, 2, Connectivity.REACHABLE, True, True),
        "steps of ten seconds": (-60, 0.1, 2, Connectivity.REACHABLE, True, False),
        "... for thirty of them": (-300, 0.1, 2, Connectivity.REACHABLE, True, True),
        "no speed known": (-300, 0.0, 2, Connectivity.REACHABLE, True, True),
        "etcd is unreachable: unknown": (-300, 1.0, 2, Connectivity.UNREACHABLE, True, None),
        "a new round has not reported yet": (-300, 1.0, 1, Connectivity.REACHABLE, True, None),
        "does not run": (-300, 1.0, 2, Connectivity.REACHABLE, False, None),
        "never reported a step": (None, 1.0, 2, Connectivity.REACHABLE, True, None),
    },
)
def test_when_training_has_stalled(
    seen: float | None,
    speed: float,
    round_number: int,
    connectivity: Connectivity,
    running: bool,
    expected: bool | None,
) -> None:
    progress = Progress(step=7, steps_per_second=speed, observed_at=at(seen)) if seen is not None else None
    view = make_view(
        connectivity,
        plan=make_plan(2),
        progress=ProgressValue(step=7, round=round_number) if seen is not None else None,
    )
    found = stalled(make_job(), view, progress, (), running=running, now=NOW)
    assert (found.status if found else None) is expected
    assert found is None or found.reason is (Reason.NO_PROGRESS if expected else Reason.PROGRESSING)


def test_time_without_etcd_is_not_a_stall() -> None:
    """While it is away nothing can be reported."""
    job = make_job(status=make_status(ConditionType.RENDEZVOUS_READY))
    view = make_view(plan=make_plan(2), progress=ProgressValue(step=7, round=2))
    found = stalled(job, view, Progress(step=7, observed_at=at(-600)), (), running=True, now=at(59))
    assert found is not None
    assert (found.status, found.requeue_at) == (False, at(60))


@pytest.mark.parametrize(("seen", "expected"), [(None, None), (-60, None), (-59, 1), (0, 60)])
def test_a_look_for_a_stall_is_put_off_by_a_report(seen: float | None, expected: float | None) -> None:
    view = make_view(progress_seen_at=at(seen) if seen is not None else None)
    assert later(view, NOW) == (at(expected) if expected is not None else None)


def test_a_script_that_reports_a_percentage_but_no_steps_does_not_stall() -> None:
    view = make_view(plan=make_plan(2), progress=ProgressValue(step=0, percent=7, round=2))
    progress = Progress(step=0, percent=7, observed_at=at(-600))
    assert stalled(make_job(), view, progress, (), running=True, now=NOW) is None


def test_a_restart_ends_a_stall() -> None:
    job = make_job(status=make_status(ConditionType.STALLED))
    found = stalled(job, make_view(), None, (), running=False, now=NOW)
    assert found is not None
    assert not found.status


PODS = [make_pod(index, node=f"node-{index}") for index in range(3)]
SINCE = NOW.timestamp() - 75
WAITING = HangValue(
    member=PODS[0].name,
    round=2,
    since=SINCE,
    why="all ranks here wait for ranks on other machines in all_reduce",
    waits_in="all_reduce",
    certain=False,
)
STUCK = HangValue(
    member=PODS[1].name, round=2, since=SINCE, why="rank 1 is in load (train.py:7)", ranks=(1,), reports_only=True
)
STOPPED = HangValue(
    member=PODS[2].name, round=2, since=SINCE, why="a signal has stopped rank 2", ranks=(2,), reports_only=False
)
BUSY = HangValue(member=PODS[1].name, round=2, since=SINCE, why="rank 1 is busy", certain=False)
OF_LAST_ROUND = HangValue(member=PODS[1].name, round=1, since=SINCE, why="rank 1 is in load (train.py:7)", ranks=(1,))
REMEDY = (
    " What to do: read the stacks of all ranks: elasticjob stacks digits -n ml, or those in its log: "
    f"kubectl logs {PODS[1].name} -n ml"
)

HANGS: dict[str, tuple[tuple[HangValue, ...], str | None]] = {
    "the rank that hangs, its pod and node, and what the others wait in": (
        (WAITING, STUCK),
        f"Worker processes hang: rank 1 is in load (train.py:7) (worker pod {PODS[1].name} on node node-1), while the "
        f"ranks of {PODS[0].name} wait in all_reduce. Since 2026-01-01T11:58:45Z. Hangs are only reported "
        "(spec.failurePolicy.hang.action)." + REMEDY,
    ),
    "... which the agent of the rank that hangs may know, too": (
        (WAITING, dataclasses.replace(STUCK, why="rank 1 is in load (train.py:7), while rank 0 waits in all_reduce")),
        "Worker processes hang: rank 1 is in load (train.py:7), while rank 0 waits in all_reduce (worker pod "
        f"{PODS[1].name} on node node-1). Since 2026-01-01T11:58:45Z. Hangs are only reported "
        "(spec.failurePolicy.hang.action)." + REMEDY,
    ),
    "a stopped process": (
        (STOPPED,),
        f"Worker processes hang: a signal has stopped rank 2 (worker pod {PODS[2].name} on node node-2). Since "
        "2026-01-01T11:58:45Z. Nothing shows that a restart would help: without a step, the worker processes restart "
        "after 30 minutes." + REMEDY.replace(PODS[1].name, PODS[2].name),
    ),
    "an evaluation is none": ((WAITING, BUSY), None),
    "of a pod that is gone": ((dataclasses.replace(STUCK, member="digits-worker-9; rm -rf /"),), None),
    "one of another round is over": ((OF_LAST_ROUND,), None),
}


@pytest.mark.parametrize(("hangs", "message"), HANGS.values(), ids=HANGS)
def test_a_hang_that_agents_are_sure_of_is_named_at_once(hangs: tuple[HangValue, ...], message: str | None) -> None:
    view = make_view(plan=make_plan(2), hangs=hangs)
    found = stalled(make_job(), view, None, PODS, running=True, now=NOW)
    assert (found.message if found else None) == message
    assert found is None or (found.status, found.reason) == (True, Reason.HANG)


def test_the_next_step_ends_a_hang_of_a_script_that_reports_nothing() -> None:
    job = make_job(status=make_status(ConditionType.STALLED))
    hung = [condition.model_copy(update={"reason": Reason.HANG.value}) for condition in job.status.conditions]
    job = job.model_copy(update={"status": job.status.model_copy(update={"conditions": tuple(hung)})})
    found = stalled(job, make_view(plan=make_plan(2)), None, PODS, running=True, now=NOW)
    assert found is not None
    assert (found.status, found.reason) == (False, Reason.PROGRESSING)
