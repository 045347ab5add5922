"""Who plans: the line of members, and this one's place in it. Pure.

Before the first plan it is the order of registration, then that of the ranks. Each watches the member before it; only
the first plans.
"""

from __future__ import annotations

import zlib

from elasticjob_runtime.contract import MemberState
from elasticjob_runtime.membership import crash_loop
from elasticjob_runtime.membership.eligibility import known_unreachable
from elasticjob_runtime.membership.view import (
    Member,
    Plan,
    Role,
    View,
)

TAKE_OVER_BY_RANK = 8
"""Ranks that take over one after the other. Should all of them be gone, the others come in no order, at the pace of
LATE_TAKEOVER: each that plans reads all members, so a thousand at once would be a storm."""

LATE_TAKEOVER = 0.1
"""s between two of the others, on average."""


def wanted_role(view: View, now: float) -> tuple[Role, str, str]:
    """(role, predecessor to watch, why)."""
    plan, store = view.store.plan, view.store
    since = trouble_since(view)
    if since is not None and now >= since + takeover_delay(view):
        return Role.PLANNER, "", "trouble, and no new plan: looking for myself"
    if plan is None:
        if store.role is None:
            return Role.FOLLOWER, "", "finding out who was here first"
        return _first_in_line(view, store.predecessor)
    if plan.rank is None:
        return _first_in_line(view, plan.value.leader)
    return _first_in_line(view, plan.rank.predecessor)


def _first_in_line(view: View, predecessor: str) -> tuple[Role, str, str]:
    if not predecessor:
        return Role.PLANNER, "", "first in line: planning"
    plan, me = view.store.plan, view.me
    member = view.store.members.get(predecessor)
    if plan is None and member is not None and me is not None and member.create_revision >= me.create_revision:
        return Role.FOLLOWER, "", f"{predecessor} registered after me: finding out who is before me in line"
    watched = view.store.role is Role.PLANNER or view.store.predecessor == predecessor
    if watched and (member is None or member.value.state is MemberState.LEAVING):
        return Role.PLANNER, "", f"{predecessor}, before me in line, is gone: looking for myself"
    if (
        plan is not None
        and member is not None
        and (member.create_revision > plan.mod_revision or predecessor == view.settings.me)
    ):
        return (
            Role.PLANNER,
            "",
            f"{predecessor}, before me in line, registered after plan {plan.round}: looking for myself",
        )
    return Role.FOLLOWER, predecessor, f"following; {predecessor} is before me in line"


def trouble_since(view: View) -> float | None:
    """When this agent saw that the current plan cannot go on; None: it has not."""
    plan, workers = view.store.plan, view.workers
    if plan is None or not view.runs_plan:
        return None
    leader = plan.value.leader
    moments = [one.seen_at for one in view.store.suspicions if one.value.suspect == leader != view.settings.me]
    if workers.failure is not None and view.stop is None:  # of a peer that stopped to save, most likely
        moments.append(workers.changed_at)
    return min(moments, default=None)


def takeover_delay(view: View) -> float:
    """Grows with the rank, so that the planner's successor comes first and the others need not come at all; and as long
    as the planner may wait before it restarts the same crash once more, unless it is the planner who is not heard."""
    plan = view.store.plan
    rank = plan.rank.group_rank if plan and plan.rank else TAKE_OVER_BY_RANK
    silent = plan is not None and any(one.value.suspect == plan.value.leader for one in view.store.suspicions)
    history = crash_loop.history_of(plan.value if plan and not silent else None)
    late = (
        _jitter(view.settings.me) * LATE_TAKEOVER * (plan.value.size if plan else 1)
        if rank >= TAKE_OVER_BY_RANK
        else 0.0
    )
    return (
        view.settings.takeover_delay * min(rank, TAKE_OVER_BY_RANK)
        + late
        + crash_loop.longest_delay(history, view.settings.crash_limits)
    )


def _jitter(name: str) -> float:
    """From 0 to 1, the same for a member whenever it asks: names say nothing of each other's."""
    return zlib.crc32(name.encode()) / 2**32


def before_me(view: View) -> list[Member]:
    """Members that plan before this one: lower ranks, or, where there is no plan, earlier registrations."""
    plan, me = view.store.plan, view.me
    if me is None:
        return []
    mine = _place(plan, me)
    return [
        member
        for member in view.store.members.values()
        if member.name != me.name
        and member.value.state is not MemberState.LEAVING
        and _place(plan, member) < mine
        and not known_unreachable(view, member)
    ]


def _place(plan: Plan | None, member: Member) -> tuple[int, int]:
    rank = plan.ranks.get(member.name) if plan and plan.ranks else None
    if rank is not None and rank.incarnation == member.value.incarnation:
        return (0, rank.group_rank)
    return (1, member.create_revision)
