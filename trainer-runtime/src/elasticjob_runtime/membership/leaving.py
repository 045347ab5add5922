"""Leaving a group whose worker processes continue in place, and who saves if all members leave. Pure.

1. A leaving member takes part until a plan without it arrives, for LEAVE_GRACE if it knows another member of the plan
   that stays. If none has arrived then, a follower takes over as planner, which sees all members, and looks once more.
2. If it knows none, all may be leaving. It takes over as planner and waits until one of them is chosen to save, for up
   to half of the grace period.
3. A planner that sees that all members leave, or have gone, chooses itself.
"""

from __future__ import annotations

from elasticjob_runtime.contract import MemberState, PlanReason, StopValue
from elasticjob_runtime.membership.actions import Action, MoveWorkers, ProposeStop, StopWorkers, Subscribe, Wait
from elasticjob_runtime.membership.eligibility import known_unreachable, ranks_of
from elasticjob_runtime.membership.in_place import STEP_GRACE
from elasticjob_runtime.membership.succession import wanted_role
from elasticjob_runtime.membership.view import Plan, Role, View, WorkersState

LEAVE_GRACE = 1.0
"""Seconds that a leaving member waits for a plan without it, so that the others need not repeat a step."""


def leave_world(view: View, now: float) -> Action | None:
    """A leaving member takes part until a plan without it, and lets its workers leave at the end of their step; None:
    nothing keeps it from stopping them."""
    plan, since = view.store.plan, view.leaving_since
    if plan is None or since is None or not _is_in_world_of_others(view):
        return None
    if plan.rank is None:
        return _leave_plan_of_others(view, plan, since + LEAVE_GRACE, now)
    if view.stop is not None and view.stop.value.saver:
        return None  # all members leave
    until = since + (LEAVE_GRACE if _another_stays(view, plan) else longest_leave(view))
    if now >= until:
        return _look_again(view, since) if now < since + longest_leave(view) else None
    if end := _take_over(view, since, now) or _propose_end(view, plan):
        return end
    return Wait(until=until, reason="leaving: waiting for a plan without this member")


def longest_leave(view: View) -> float:
    """Seconds after the signal for which a member waits until one is chosen that saves. The rest is for saving."""
    wait = view.settings.shutdown_grace / 2 if _is_in_world_of_others(view) else 0.0
    return max(LEAVE_GRACE, wait)


def _is_in_world_of_others(view: View) -> bool:
    """Also if only one other member remains in a plan without this one."""
    plan, workers = view.store.plan, view.workers
    in_place = plan is not None and plan.value.in_place and (plan.rank is None or plan.value.size > 1)
    return in_place and workers.in_place and workers.state is WorkersState.RUNNING


def _leave_plan_of_others(view: View, plan: Plan, until: float, now: float) -> Action | None:
    if now >= until:
        return None
    if not view.runs_plan:
        return MoveWorkers(
            plan=plan, step_grace=STEP_GRACE, reason=f"leaving: plan {plan.round} continues without this"
        )
    if not view.workers.waiting:
        return Wait(until=until, reason="leaving: waiting for the end of the step")
    return None


def _another_stays(view: View, plan: Plan) -> bool:
    """Whether this member knows another one of the plan that keeps the state. A follower relies on its predecessor,
    which sees, when it leaves in its turn, that this member has left. So the last one finds none, and saves."""
    ranks = ranks_of(plan)
    for member in view.store.members.values():
        rank = ranks.get(member.name)
        known = member.name == view.store.predecessor if rank is None else member.value.incarnation == rank.incarnation
        answers = member.name not in view.silent and not known_unreachable(view, member)
        if known and answers and member.name != view.settings.me and member.value.state is not MemberState.LEAVING:
            return True
    return False


def _look_again(view: View, since: float) -> Subscribe | None:
    """Of a follower that relies on another member, before its workers stop without saving. On a slow network the watch
    may not have shown yet that the other one leaves, too. Of two members that announce and then read, one sees the
    other leave."""
    if view.store.role is Role.PLANNER:
        return None
    until = since + longest_leave(view)
    return Subscribe(role=Role.PLANNER, until=until, reason="leaving: looking whether another member stays")


def _take_over(view: View, since: float, now: float) -> Subscribe | None:
    """A member whose predecessors leave, too, must see whether all members do."""
    role, predecessor, reason = wanted_role(view, now)
    if role is not Role.PLANNER or view.store.role is Role.PLANNER:
        return None
    return Subscribe(role=role, predecessor=predecessor, until=since + longest_leave(view), reason=reason)


def stop_leaving(view: View, now: float) -> StopWorkers:
    """What a leaving member does with worker processes that no other member needs."""
    plan, me = view.store.plan, view.settings.me
    grace = _rest_of_grace(view, now)
    if plan is None or plan.rank is None or not plan.value.in_place:
        return StopWorkers(grace=grace, reason="leaving: the workers get time to save")
    saver = me if plan.value.size == 1 else view.stop.value.saver if view.stop is not None else ""
    if not saver:
        return StopWorkers(grace=grace, reason="leaving: the workers get time to save")
    return StopWorkers(
        grace=grace, last=True, saves=saver == me, reason=f"all members leave: the workers of {saver} get time to save"
    )


def _rest_of_grace(view: View, now: float) -> float:
    """Seconds to save. A wait longer than that of an ordinary leave is deducted: the pod is killed when its time is
    over."""
    grace, since = view.settings.shutdown_grace, view.leaving_since
    longer = 0.0 if since is None else now - since - view.settings.leave_timeout - LEAVE_GRACE
    return max(grace / 2, grace - max(0.0, longer))


def _propose_end(view: View, plan: Plan) -> ProposeStop | None:
    """Of a leaving planner: if all members of the plan leave, or are gone, no plan without them comes, and the state is
    lost unless one of them saves it. That is this member, since another one may have stopped its worker processes
    already; if its own have failed, the first in the order of ranks whose have not."""
    ranks = sorted(ranks_of(plan).items(), key=lambda item: item[1].group_rank)
    members = [
        member
        for name, rank in ranks
        if (member := view.store.members.get(name)) is not None and member.value.incarnation == rank.incarnation
    ]
    if view.store.role is not Role.PLANNER or len(ranks) < plan.value.size or not members:
        return None
    if any(member.value.state is not MemberState.LEAVING for member in members):
        return None
    failed = {failure.member for failure in view.store.failures}
    members.sort(key=lambda member: member.name != view.settings.me)
    saver = next((member.name for member in members if member.name not in failed), members[0].name)
    stop = StopValue(attempt=plan.value.attempt, reason=PlanReason.MEMBER_LEFT, message="all members left", saver=saver)
    return ProposeStop(stop=stop, expected_mod_revision=plan.mod_revision, reason=f"all members leave: {saver} saves")
