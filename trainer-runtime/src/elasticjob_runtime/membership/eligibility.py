"""Who can be planned, in which order, and who has answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticjob_runtime.contract import MemberState, RankValue
from elasticjob_runtime.membership.view import (
    Member,
    Plan,
    View,
)

PRESENT = (MemberState.READY, MemberState.SUCCEEDED)


def candidates(view: View) -> list[Member]:
    """Members that can be planned, survivors of the current plan first in rank order, then newcomers: ranks stay
    stable."""
    ranks = ranks_of(view.store.plan)
    wanted = {name: index for index, name in enumerate(view.spec.members)}
    present = [
        member for member in fitting(view) if member.value.state in PRESENT and not known_unreachable(view, member)
    ]

    def order(member: Member) -> tuple[int, int, int]:
        rank = ranks.get(member.name)
        if rank is not None and rank.incarnation == member.value.incarnation:
            return (0, rank.group_rank, 0)
        return (1, wanted.get(member.name, len(wanted)), member.create_revision)

    return sorted(present, key=order)


def known_unreachable(view: View, member: Member) -> bool:
    probe = view.probes.get(member.name)
    return probe is not None and probe.incarnation == member.value.incarnation and not probe.reachable


def chosen(view: View, among: Sequence[Member], size: int) -> tuple[Member, ...]:
    """`size` members of `among`, those the operator names before others; in the order of `among`."""
    named = set(view.spec.members)
    preferred = sorted(range(len(among)), key=lambda index: (bool(named) and among[index].name not in named, index))
    keep = sorted(preferred[:size])
    return tuple(among[index] for index in keep)


def fitting(view: View) -> list[Member]:
    """Members against which nothing speaks for ever: not about to be taken away, and with as many workers as the
    others."""
    draining, nproc = (
        frozenset(view.spec.draining),
        view.settings.nproc,
    )  # once: a planner looks at a thousand members a thousand times
    return [
        member for member in view.store.members.values() if member.name not in draining and member.value.nproc == nproc
    ]


def unasked(view: View, plan: Plan, now: float, since: float) -> tuple[Member, ...]:
    """Present members of the plan, but for this one, whose last answer is too old."""
    return tuple(
        member
        for member in candidates(view)
        if member.name in ranks_of(plan) and member.name != view.settings.me and not answered(view, member, now, since)
    )


def answered(view: View, member: Member, now: float, since: float = 0.0) -> bool:
    if not member.value.peer_port or member.name == view.settings.me:
        return True
    probe = view.probes.get(member.name)
    if probe is None or probe.incarnation != member.value.incarnation:
        return False
    return probe.asked_at >= since and now - probe.at <= view.settings.probe_age


def ranks_of(plan: Plan | None) -> Mapping[str, RankValue]:
    return plan.ranks if plan and plan.ranks else {}


def names(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def doing(view: View) -> str:
    """What this agent is at, while there is nothing to do."""
    plan = view.store.plan
    if not view.warm:
        return "warming up: importing what the script needs"
    if plan is None:
        return "waiting for the first plan"
    if plan.rank is None:
        return f"spare: plan {plan.round} has {plan.value.size} members, all it wants"
    return f"training: plan {plan.round}, group rank {plan.rank.group_rank} of {plan.value.size}"
