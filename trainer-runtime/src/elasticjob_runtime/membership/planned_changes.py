"""Planned changes: a join, a resize, a leave. Workers that handle SIGTERM save before the next plan is made. Pure.

A script that saves together (all ranks meet at the end of a step) needs the signal everywhere while everybody still
runs; and nobody may read the checkpoint that another one is still writing. So where any member of the plan has such
workers, the planner first writes `stop`:

1. Every member whose workers handle SIGTERM sends it to them, and kills them when its grace is over. The others train
   on meanwhile: who saves may need them for the rest of its step. What fails of it is no failure.
2. A member in whose workers nothing is left to save says so (`saved`). One that leaves just goes.
3. When nobody is left to wait for, or the grace is over, the next plan is made, from those who are there then.

Where no worker handles SIGTERM nothing of this happens: the plan comes at once, and the workers are killed.
"""

from __future__ import annotations

from elasticjob_runtime.contract import PlanReason, PlanValue, StopValue
from elasticjob_runtime.membership.actions import (
    Action,
    ProposeStop,
    PublishState,
    StopWorkers,
)
from elasticjob_runtime.membership.eligibility import known_unreachable, ranks_of
from elasticjob_runtime.membership.view import (
    ALIVE,
    Plan,
    Stop,
    View,
    WorkersState,
)

PLANNED = (PlanReason.MEMBER_JOINED, PlanReason.MEMBER_LEFT, PlanReason.RESIZED)
"""Reasons of plans before which the workers were well, and have a state that is worth saving."""

SLACK = 2.0
"""s beyond the grace for a member to tell that its workers are gone."""


def is_planned(plan: PlanValue, *, after: int) -> bool:
    """Does `plan` follow round `after` at once, and for a planned change?"""
    return plan.reason in PLANNED and plan.round == after + 1


def make_way(view: View, _now: float) -> Action | None:
    """A member's part: say that its workers can save, let them, and say when they have."""
    me, plan, workers = view.me, view.store.plan, view.workers
    if me is None or plan is None or not view.runs_plan or view.store.role is None:
        return None
    if workers.saves and not me.value.saves:
        return _say(
            view, saves=True, reason="the workers handle SIGTERM: they get it, and time, before a planned change"
        )
    stop = view.stop
    if stop is None:
        return None
    if workers.state is WorkersState.RUNNING and workers.saves:
        return StopWorkers(
            grace=view.settings.shutdown_grace, reason=f"{stop.value.message}: the workers get time to save"
        )
    still_saving = workers.state in ALIVE and workers.state is not WorkersState.RUNNING
    if me.value.saves and me.value.saved < plan.round and not still_saving:
        return _say(view, saved=plan.round, reason=f"{stop.value.message}: nothing is left to save here")
    return None


def _say(view: View, *, reason: str, saves: bool | None = None, saved: int | None = None) -> PublishState:
    assert view.me is not None
    value = view.me.value
    return PublishState(
        state=value.state, round=value.round, stores=view.stores, saves=saves, saved=saved, reason=reason
    )


def let_save(view: View, plan: Plan, reason: PlanReason, message: str, caused_at: float) -> ProposeStop | None:
    """The planner's first step of a planned change; None: nobody has anything to save."""
    names = saving(view, plan)
    if not names or reason not in PLANNED or view.settings.shutdown_grace <= 0:
        return None
    stop = StopValue(attempt=plan.value.attempt, reason=reason, message=message, caused_at=caused_at)
    why = f"{message}; before plan {plan.round + 1}, workers on {len(names)} members get time to save"
    return ProposeStop(stop=stop, expected_mod_revision=plan.mod_revision, reason=why)


def saving(view: View, plan: Plan) -> list[str]:
    """Members of the plan whose workers may have something to save, or are at it."""
    found = []
    for name, rank in ranks_of(plan).items():
        member = view.store.members.get(name)
        if member is None or member.value.incarnation != rank.incarnation or known_unreachable(view, member):
            continue
        if member.value.saves and member.value.saved < plan.round:
            found.append(name)
    return found


def patience(view: View, stop: Stop) -> float:
    """Until when the planner waits for those who save."""
    return stop.seen_at + view.settings.shutdown_grace + SLACK
