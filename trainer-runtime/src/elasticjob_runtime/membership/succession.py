"""The succession: the order in which members take over as planner, and this member's position in it. Pure.

Before the first plan it is the order of registration, afterwards the order of the ranks.
Each member watches its predecessor, and only the first plans.
"""

from __future__ import annotations

import zlib

from elasticjob_runtime.contract import MemberState
from elasticjob_runtime.membership import crash_loop, plan_rate
from elasticjob_runtime.membership.eligibility import known_unreachable
from elasticjob_runtime.membership.view import Member, Plan, Role, View

TAKE_OVER_BY_RANK = 8
"""Ranks that take over one after the other. If all of them are gone, the others follow in random order, LATE_TAKEOVER
apart: each planner reads all members, so a thousand of them at once would overload the store."""

LATE_TAKEOVER = 0.1
"""Average seconds between two takeovers by later ranks."""


def wanted_role(view: View, now: float) -> tuple[Role, str, str]:
    """(role, predecessor to watch, reason)."""
    plan, store = view.store.plan, view.store
    since = plan_broken_since(view)
    if since is not None and now >= since + takeover_delay(view):
        return Role.PLANNER, "", "the plan is broken and no new one came: taking over as planner"
    if plan is None:
        if store.role is None:
            return Role.FOLLOWER, "", "looking for the members that registered earlier"
        return _role_behind(view, store.predecessor)
    if plan.rank is None:
        return _role_behind(view, plan.value.leader)
    return _role_behind(view, plan.rank.predecessor)


def _role_behind(view: View, predecessor: str) -> tuple[Role, str, str]:
    """The role of a member with this predecessor, which may be gone."""
    if not predecessor:
        return Role.PLANNER, "", "this member is the planner"
    plan, me = view.store.plan, view.me
    member = view.store.members.get(predecessor)
    if plan is None and member is not None and me is not None and member.create_revision >= me.create_revision:
        return Role.FOLLOWER, "", f"{predecessor} registered later than this member: looking for another predecessor"
    watched = view.store.role is Role.PLANNER or view.store.predecessor == predecessor
    if watched and (member is None or member.value.state is MemberState.LEAVING):
        return Role.PLANNER, "", f"{predecessor} is gone: taking over as planner"
    if (
        plan is not None
        and member is not None
        and (member.create_revision > plan.mod_revision or predecessor == view.settings.me)
    ):
        return Role.PLANNER, "", f"{predecessor} registered again after plan {plan.round}: taking over as planner"
    return Role.FOLLOWER, predecessor, f"following; watching {predecessor}"


def plan_broken_since(view: View) -> float | None:
    """When this agent saw that the current plan cannot continue; None: it has not."""
    plan, workers = view.store.plan, view.workers
    if plan is None or not view.runs_plan:
        return None
    leader = plan.value.leader
    moments = [
        suspicion.seen_at
        for suspicion in view.store.suspicions
        if suspicion.value.suspect == leader != view.settings.me
    ]
    # With a stop, a peer that exited to save most likely caused it. The workers of a spare are not in the plan.
    if workers.failure is not None and view.stop is None and plan.rank is not None:
        moments.append(workers.changed_at)
    return min(moments, default=None)


def takeover_delay(view: View) -> float:
    """Seconds to wait for the planner before taking over.

    Grows with the rank, so that the planner's successor comes first and the others usually need not act. If the planner
    is suspected, its successor need not wait: it probes the planner before it plans.
    Covers the backoff that the planner may apply before it restarts the same crash, unless the planner itself is
    suspected, and how long it may wait because plans follow one another too fast.
    """
    plan = view.store.plan
    rank = plan.rank.group_rank if plan and plan.rank else TAKE_OVER_BY_RANK
    suspected = plan is not None and any(
        suspicion.value.suspect == plan.value.leader for suspicion in view.store.suspicions
    )
    history = crash_loop.history_of(plan.value if plan and not suspected else None)
    late = 0.0
    if rank >= TAKE_OVER_BY_RANK:
        late = _jitter(view.settings.me) * LATE_TAKEOVER * (plan.value.size if plan else 1)
    return (
        view.settings.takeover_delay * max(0, min(rank, TAKE_OVER_BY_RANK) - suspected)
        + late
        + crash_loop.longest_delay(history, view.settings.crash_limits)
        + plan_rate.longest_wait(view)
    )


def _jitter(name: str) -> float:
    """From 0 to 1, constant for a member and unrelated to its neighbours'."""
    return zlib.crc32(name.encode()) / 2**32


def members_ahead(view: View) -> list[Member]:
    """Members that plan before this one: those with lower ranks or, without a plan, earlier registrations."""
    plan, me = view.store.plan, view.me
    if me is None:
        return []
    mine = _position(plan, me)
    return [
        member
        for member in view.store.members.values()
        if member.name != me.name
        and member.value.state is not MemberState.LEAVING
        and _position(plan, member) < mine
        and not known_unreachable(view, member)
    ]


def _position(plan: Plan | None, member: Member) -> tuple[int, int]:
    rank = plan.ranks.get(member.name) if plan and plan.ranks else None
    if rank is not None and rank.incarnation == member.value.incarnation:
        return (0, rank.group_rank)
    return (1, member.create_revision)
