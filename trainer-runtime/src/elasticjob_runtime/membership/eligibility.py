"""Which members can be in a plan, in which order, and which of them answer. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from elasticjob_runtime.contract import MemberState, RankValue
from elasticjob_runtime.membership.replicas import whole_replicas
from elasticjob_runtime.membership.view import Member, Plan, Probe, View

PRESENT = (MemberState.READY, MemberState.SUCCEEDED)


def eligible_members(view: View) -> list[Member]:
    """Members that can be in the next plan: first those of the current plan in rank order, so that ranks stay stable,
    then joiners by name: worker pods by index. Of replicas only whole ones, except before the first plan."""
    ranks = ranks_of(view.store.plan)

    def order(member: Member) -> tuple[int, int, tuple[str | int, ...]]:
        rank = ranks.get(member.name)
        if rank is not None and rank.incarnation == member.value.incarnation:
            return 0, rank.group_rank, ()
        return 1, 0, by_number(member.name)

    found = sorted(present_members(view), key=order)
    return found if view.store.plan is None else whole_replicas(view, found)


def present_members(view: View) -> list[Member]:
    return [
        member
        for member in compatible_members(view)
        if member.value.state in PRESENT and not known_unreachable(view, member)
    ]


@functools.lru_cache(maxsize=8192)
def by_number(name: str) -> tuple[str | int, ...]:
    """Sorts member-10 after member-9."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name))


def compatible_members(view: View) -> list[Member]:
    """Members that nothing excludes for good: they are not draining or left out, and start as many worker processes as
    the others."""
    # Read once: a planner looks at a thousand members a thousand times.
    draining, nproc, replica_size = frozenset(view.spec.draining), view.settings.nproc, view.settings.replica_size
    left_out = view.store.plan.value.left_out if view.store.plan else ""
    return [
        member
        for member in view.store.members.values()
        if member.name not in draining
        and (member.value.nproc, member.value.replica_size) == (nproc, replica_size)
        and member.value.incarnation != left_out
    ]


def may_stay(view: View) -> bool:
    """Whether this member can be in the next plan, as far as it knows."""
    return view.leaving_since is None and view.settings.me not in view.spec.draining


def known_unreachable(view: View, member: Member) -> bool:
    probe = view.probes.get(member.name)
    return probe is not None and probe.incarnation == member.value.incarnation and not probe.reachable


def members_to_probe(view: View, plan: Plan, now: float, since: float) -> tuple[Member, ...]:
    """The plan's eligible members, except this one, that have no recent answer to a probe sent after `since`."""
    return tuple(
        member
        for member in eligible_members(view)
        if member.name in ranks_of(plan)
        and member.name != view.settings.me
        and not probed_recently(view, member, now, since)
    )


def probed_recently(view: View, member: Member, now: float, since: float = 0.0) -> bool:
    """Whether there is a recent result of a probe sent after `since`. True also if the member needs no probe."""
    if not member.value.peer_port or member.name == view.settings.me:
        return True
    probe = recent_probe(view, member, now)
    return probe is not None and probe.asked_at >= since


def recent_probe(view: View, member: Member, now: float) -> Probe | None:
    probe = view.probes.get(member.name)
    if probe is None or probe.incarnation != member.value.incarnation or now - probe.at > view.settings.probe_age:
        return None
    return probe


def ranks_of(plan: Plan | None) -> Mapping[str, RankValue]:
    return plan.ranks if plan and plan.ranks else {}


def join_names(names: Sequence[str]) -> str:
    """For messages: at most three names."""
    shown = ", ".join(sorted(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def describe(view: View) -> str:
    """The agent's state in one clause, for when there is nothing to do."""
    plan = view.store.plan
    if not view.warm:
        return "warming up: importing what the script needs"
    if plan is None:
        return "waiting for the first plan"
    if plan.rank is None and view.me is not None and view.me.value.failed:
        return f"waiting to join plan {plan.round}: {view.me.value.failed} failures so far"
    if plan.rank is None and plan.value.in_place and view.me is not None and view.me.value.in_place < plan.round:
        return f"waiting until the worker processes are ready to join plan {plan.round}"
    if plan.rank is None:
        return f"spare: plan {plan.round} has {plan.value.size} members and needs no more"
    return f"training: plan {plan.round}, group rank {plan.rank.group_rank} of {plan.value.size}"
