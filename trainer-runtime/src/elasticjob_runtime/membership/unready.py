"""Members that could train with the others, but whose worker processes are not ready. The planner publishes who they
are and since when, for the operator to tell: the others do not wait for them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from elasticjob_runtime.contract import MemberState, UnreadyValue
from elasticjob_runtime.membership.actions import Action, PublishUnready, Wait
from elasticjob_runtime.membership.eligibility import compatible_members, describe, join_names, ranks_of
from elasticjob_runtime.membership.in_place import is_ready_to_join
from elasticjob_runtime.membership.sizes import group_size
from elasticjob_runtime.membership.view import Member, Plan, View

UNREADY_SECONDS = 20.0
"""Shorter waits are not published: most scripts are ready after a few seconds."""
SHOWN = 10
"""Names in a value."""


def publish_unready(view: View, plan: Plan, now: float, otherwise: Wait | None) -> Action | None:
    """`otherwise`: what the planner does if what is published is true."""
    waited_for, before = _waited_for(view, plan), view.store.unready
    known = before.members if before else []
    new = [member for member in waited_for if member.name not in known]
    due = {member.name: max(member.seen_at, view.store.planned_at or 0.0) + UNREADY_SECONDS for member in new}
    late = [member for member in waited_for if now >= due.get(member.name, now)]
    found = _value(late, before)
    if found != before:
        who = f"the others train without {join_names(found.members)}" if found else "no member is unready any more"
        return PublishUnready(unready=found, reason=who)
    if next_due := min((at for at in due.values() if at > now), default=None):
        wait = otherwise or Wait(reason=describe(view))
        return dataclasses.replace(wait, until=min(next_due, wait.until or next_due))
    return otherwise


def _waited_for(view: View, plan: Plan) -> list[Member]:
    """Present members that are not ready, if the group would grow with them."""
    if view.store.planned_at is None:
        return []
    ranks = ranks_of(plan)
    outside = [
        member
        for member in compatible_members(view)
        if (rank := ranks.get(member.name)) is None or rank.incarnation != member.value.incarnation
    ]
    late = [member for member in outside if _is_unready(plan, member)]
    ready = plan.value.size + len(outside) - len(late)
    return late if group_size(view.spec, ready + len(late)) != group_size(view.spec, ready) else []


def _is_unready(plan: Plan, member: Member) -> bool:
    starts = member.value.state is MemberState.READY and not is_ready_to_join(plan, member)
    return starts or member.value.state is MemberState.WARMING


def _value(late: Sequence[Member], before: UnreadyValue | None) -> UnreadyValue | None:
    """Begins with the same member as before, if that is still late."""
    if not late:
        return None
    known = before.members[:1] if before else []
    first, *others = sorted(late, key=lambda member: (member.name not in known, member.name))
    return UnreadyValue(
        members=[first.name, *(member.name for member in others[: SHOWN - 1])],
        since=before.since if before and first.name in known else first.value.changed_at,
        failure=first.value.failure,
    )
