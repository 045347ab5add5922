"""Failures of a member that has taken no step since it joined the others. They are its own, and cost the job no
restart. Pure.

1. It publishes how often its worker processes have failed (`MemberValue.failed`), and is `warming`: in no plan.
2. The others go on without it.
3. It is ready again after a delay that doubles with each failure; its first step ends the count.
4. After a few failures in a row its agent exits, so that another one takes its place, elsewhere if possible.
"""

from __future__ import annotations

from elasticjob_runtime.contract import PEER_LOST, ExitCode, MemberState
from elasticjob_runtime.membership.actions import Action, Exit, PublishState, stop_at_once
from elasticjob_runtime.membership.view import ALIVE, View

ATTEMPTS_IN_PLACE = 5
"""Failures in a row after which an agent exits where the others continue in place: a failure costs them at most two
short stops."""
ATTEMPTS = 2
"""The same where processes restart: each failure restarts those of all members twice."""

MAX_DELAY = 60.0
"""s"""


def fails_alone(view: View) -> bool:
    """Whether the local workers have failed before they took a step with members that were there before this one."""
    workers = view.workers
    plan = workers.plan
    if workers.failure is None or plan is None or view.stepped is None:
        return False
    if plan.rank is None:
        return True
    if plan.rank.joined <= plan.value.oldest or view.stepped >= plan.rank.joined:
        return False
    stable = workers.changed_at - workers.began_at >= view.settings.crash_limits.stable_time
    return plan.value.in_place or plan.value.reports_steps or not stable


def report_own_failure(view: View, _now: float) -> PublishState | None:
    """Before the failure itself, so that the planner does not include this member again at once. One that lost a peer
    is not to blame."""
    me, failure = view.me, view.workers.failure
    if me is None or failure is None or me.value.failed_at >= failure.time or not fails_alone(view):
        return None
    if failure.reason == PEER_LOST or me.value.state is MemberState.LEAVING:
        return None
    again = me.value.state is not MemberState.WARMING  # else another of its processes, of the same attempt
    return PublishState(
        state=MemberState.WARMING, round=me.value.round, stores=view.stores, in_place=0,
        failed=me.value.failed + again, failed_at=failure.time, failure=failure.message,
        reason=f"the worker processes failed before their first step with the others: {failure.message}",
    )  # fmt: skip


def declines_plan(view: View) -> bool:
    """Whether the newest plan includes this member, whose workers have failed since they were ready. Others would wait
    for them to start again."""
    me, plan = view.me, view.store.plan
    if me is None or plan is None or plan.rank is None or not plan.value.in_place or view.runs_plan:
        return False
    return me.value.state is MemberState.WARMING and me.value.failed > 0 and view.workers.failure is not None


def forget_own_failures(view: View, _now: float) -> PublishState | None:
    """After the first step."""
    me, plan = view.me, view.workers.plan
    if me is None or not me.value.failed or plan is None or plan.rank is None or not view.runs_plan:
        return None
    if view.stepped is None or view.stepped < plan.rank.joined:
        return None
    return PublishState(
        state=me.value.state, round=me.value.round, stores=view.stores, failed=0, failed_at=0.0, failure="",
        reason="the worker processes have taken a step with the others",
    )  # fmt: skip


def retry_at(view: View) -> float | None:
    """When this member is ready to join again; None: its workers have not failed."""
    me = view.me
    if me is None or not me.value.failed or me.value.state is not MemberState.WARMING:
        return None
    return view.workers.changed_at + min(MAX_DELAY, view.settings.join_backoff * 2.0 ** min(me.value.failed - 1, 30))


def give_up_joining(view: View, _now: float) -> Action | None:
    """Exits, and leaves its place to another one, which may run on a better machine."""
    me, plan = view.me, view.store.plan
    if me is None or plan is None:
        return None
    attempts = ATTEMPTS_IN_PLACE if plan.value.in_place else ATTEMPTS
    if me.value.state is not MemberState.WARMING or me.value.failed < attempts:
        return None
    return _exit(
        view,
        f"the worker processes failed {me.value.failed} times before their first step with the others, "
        f"which go on without this member: {me.value.failure}",
    )


def exit_if_left_out(view: View, _now: float) -> Action | None:
    """The others no longer train with this member (broken_worlds.py)."""
    me, plan = view.me, view.store.plan
    if me is None or plan is None or plan.value.left_out != me.value.incarnation:
        return None
    return _exit(view, f"the others go on without this member: {plan.value.message}")


def _exit(view: View, reason: str) -> Action:
    return stop_at_once(view, reason) if view.workers.state in ALIVE else Exit(code=ExitCode.CANNOT_JOIN, reason=reason)
