"""Places in a plan: each member's rank, predecessor and neighbours; and how they follow from those of the plan before.
Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from elasticjob_runtime.contract import Neighbour, PlanValue, RankValue
from elasticjob_runtime.membership.view import (
    Member,
)

MOST_GONE = 32
"""Ranks that a plan's head names as gone, at most: it stays small."""


def assign_rank(members: Sequence[Member], rank: int) -> RankValue:
    """The place of `members[rank]` among all."""
    size = len(members)
    neighbours = [members[(rank + distance) % size] for distance in (1, 2) if distance < size]
    return RankValue(
        group_rank=rank,
        incarnation=members[rank].value.incarnation,
        predecessor=members[rank - 1].name if rank else "",
        neighbours=tuple(
            Neighbour(
                name=one.name,
                incarnation=one.value.incarnation,
                address=one.value.address,
                peer_port=one.value.peer_port,
            )
            for one in neighbours
        ),
    )


def changed(before: Mapping[str, RankValue], members: Sequence[Member]) -> tuple[tuple[int, ...], int] | None:
    """(ranks of `before` that are gone, how many stayed); None where that does not tell all of `members`, or is too
    much to tell."""
    there = {member.name: member.value.incarnation for member in members}
    gone = tuple(sorted(rank.group_rank for name, rank in before.items() if there.get(name) != rank.incarnation))
    stayed = sorted(rank.group_rank for name, rank in before.items() if there.get(name) == rank.incarnation)
    names = {rank.group_rank: name for name, rank in before.items()}
    if (
        not stayed
        or len(gone) > MOST_GONE
        or [member.name for member in members[: len(stayed)]] != [names[rank] for rank in stayed]
    ):
        return None
    return gone, len(stayed)


def carry_over_rank(rank: RankValue, plan: PlanValue) -> RankValue | None:
    """The place in `plan` of who had `rank` in the plan that it follows; None: some of it is new, so it is to be
    read."""
    mine, gone = rank.group_rank, set(plan.gone)
    before = plan.stayed + len(gone)
    around = range(mine + 1, mine + 3)
    more = plan.size > plan.stayed
    if (
        mine in gone
        or min(before, plan.size) < 3
        or any(other % before in gone or (more and other >= before) for other in around)
    ):
        return None
    place = mine - sum(other < mine for other in gone)
    if place and mine - 1 in gone:
        return None
    return dataclasses.replace(rank, group_rank=place, predecessor=rank.predecessor if place else "")
