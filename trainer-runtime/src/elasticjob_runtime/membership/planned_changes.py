"""Planned changes: a join, a resize, a leave. Workers that can save do so before the next plan is made. Pure.

Workers can save if they handle SIGTERM or call `checkpoint_wanted` (training/save_request.py).

A script whose ranks save together, at the end of a step, needs the request on every rank while all of them still run,
and no rank may read a checkpoint that another one is still writing. So if any member of the plan has such workers, the
planner first writes `stop`:

1. Each member whose workers can save signals or asks them to, and kills them when they have saved or their grace
   period ends. Other workers keep training meanwhile, because the ranks that save may need them to finish the step.
   Their failures do not count.
2. Each member publishes that its workers have nothing left to save (`saved`). A leaving member just goes.
3. When all members have saved, or the grace period is over, the planner makes the next plan from those present.

If no worker can save, the plan comes at once and the workers are killed.
"""

from __future__ import annotations

from elasticjob_runtime.contract import PlanReason, PlanValue, StopValue
from elasticjob_runtime.membership.actions import Action, ProposeStop, PublishState, StopWorkers
from elasticjob_runtime.membership.eligibility import known_unreachable, may_stay, ranks_of
from elasticjob_runtime.membership.view import ALIVE, Plan, Stop, View, WorkersState

PLANNED = (PlanReason.MEMBER_JOINED, PlanReason.MEMBER_LEFT, PlanReason.RESIZED)
"""Reasons for plans that interrupt healthy workers, which have state worth saving."""

SLACK = 2.0
"""Seconds after the grace period for a member to publish that its workers are gone."""


def is_planned(plan: PlanValue, *, after: int) -> bool:
    """Whether `plan` directly follows round `after`, for a planned change."""
    return plan.reason in PLANNED and plan.round == after + 1


def prepare_change(view: View, _now: float) -> Action | None:
    """The member's part: publish that its workers can save, let them save, publish when they have."""
    me, plan, workers = view.me, view.store.plan, view.workers
    if me is None or plan is None or not view.runs_plan or view.store.role is None:
        return None
    if workers.saves and not me.value.saves:
        return _publish(view, saves=True, reason="the workers can save before a planned change")
    stop = view.stop
    if stop is None:
        return None
    if workers.state is WorkersState.RUNNING and workers.saves and not has_saved(view):
        return StopWorkers(
            grace=view.settings.shutdown_grace, reason=f"{stop.value.message}: the workers get time to save"
        )
    still_saving = workers.state in ALIVE and workers.state is not WorkersState.RUNNING
    if me.value.saves and not has_saved(view) and not still_saving:
        return _publish(view, saved=plan.round, reason=f"{stop.value.message}: the workers here have saved")
    return None


def has_saved(view: View) -> bool:
    """Whether this member has published that its workers have nothing to save, or could not save yet: the others no
    longer wait for them."""
    return view.me is not None and view.me.value.saved >= view.workers.round


def _publish(view: View, *, reason: str, saves: bool | None = None, saved: int | None = None) -> PublishState:
    assert view.me is not None
    value = view.me.value
    return PublishState(
        state=value.state, round=value.round, stores=view.stores, saves=saves, saved=saved, reason=reason
    )


def will_stay(view: View) -> bool:
    """Whether this member is also in the plan after the pending planned change, as far as it knows."""
    stop, spec = view.stop, view.spec
    if stop is None or not may_stay(view):
        return False
    if stop.value.reason is PlanReason.MEMBER_JOINED:
        return True
    # If one leaves and not every size is allowed, others become spares.
    return not spec.allowed and (stop.value.reason is PlanReason.MEMBER_LEFT or spec.generation > 0)


def propose_stop(view: View, plan: Plan, reason: PlanReason, message: str, caused_at: float) -> ProposeStop | None:
    """The planner's first step of a planned change; None: no member has anything to save, or all continue in place."""
    names = members_saving(view, plan)
    if plan.value.in_place or not names or reason not in PLANNED or view.settings.shutdown_grace <= 0:
        return None
    stop = StopValue(attempt=plan.value.attempt, reason=reason, message=message, caused_at=caused_at)
    why = f"{message}; workers on {len(names)} members get time to save before plan {plan.round + 1}"
    return ProposeStop(stop=stop, expected_mod_revision=plan.mod_revision, reason=why)


def members_saving(view: View, plan: Plan) -> list[str]:
    """Members of the plan whose workers have not saved yet."""
    saver = view.stop.value.saver if view.stop is not None else ""
    found = []
    for name, rank in ranks_of(plan).items():
        member = view.store.members.get(name)
        if member is None or member.value.incarnation != rank.incarnation or known_unreachable(view, member):
            continue
        if name == saver or (member.value.saves and member.value.saved < plan.round):
            found.append(name)
    return found


def save_deadline(view: View, stop: Stop) -> float:
    """Until when the planner waits for members to save."""
    return stop.seen_at + view.settings.shutdown_grace + SLACK
