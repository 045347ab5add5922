"""Positions in a plan: each member's rank, predecessor and neighbours, and how they follow from the previous plan.
Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from elasticjob_runtime.contract import Neighbour, PlanValue, RankValue
from elasticjob_runtime.membership.view import Member

MAX_GONE = 32
"""At most this many removed ranks are listed in a plan's head, to keep it small."""


def by_location(members: Sequence[Member], locations: Mapping[str, str], unit: int = 1) -> tuple[Member, ...]:
    """The members in an order in which those of one block, rack or node are neighbours. `locations`: see
    LocationsValue.

    Domains follow each other as their first members do, and so do the members of one domain: the first member stays the
    first, and members that are in such an order already keep it. One that joins comes last in its domain.
    `unit`: so many members in a row stay together, where the first of them is.
    """
    if unit > 1:
        heads = by_location(members[::unit], locations)
        starts = {head.name: start for start, head in zip(range(0, len(members), unit), members[::unit], strict=True)}
        return tuple(member for head in heads for member in members[starts[head.name] :][:unit])
    first: dict[tuple[str, ...], int] = {}
    paths = [_path(member.name, locations) for member in members]
    for place, path in enumerate(paths):
        for depth in range(len(path)):
            first.setdefault(path[: depth + 1], place)
    order = [(tuple(first[path[: depth + 1]] for depth in range(len(path))), place) for place, path in enumerate(paths)]
    return tuple(members[place] for _, place in sorted(order))


def _path(name: str, locations: Mapping[str, str]) -> tuple[str, ...]:
    """A member whose location is not known is a domain of its own, where it is in the order now."""
    return tuple(locations[name].split("/")) if name in locations else ("", name)


def assign_rank(members: Sequence[Member], rank: int, joined: int = 0) -> RankValue:
    """The position of `members[rank]`, which has been in every plan since round `joined`, in a plan of `members`."""
    size = len(members)
    neighbours = [members[(rank + distance) % size] for distance in (1, 2) if distance < size]
    return RankValue(
        group_rank=rank,
        incarnation=members[rank].value.incarnation,
        joined=joined,
        predecessor=members[rank - 1].name if rank else "",
        neighbours=tuple(
            Neighbour(
                name=neighbour.name,
                incarnation=neighbour.value.incarnation,
                address=neighbour.value.address,
                peer_port=neighbour.value.peer_port,
            )
            for neighbour in neighbours
        ),
    )


def changed(before: Mapping[str, RankValue], members: Sequence[Member]) -> tuple[tuple[int, ...], int] | None:
    """(ranks of `before` that are gone, number that stayed); None if that does not determine `members`, or if too many
    are gone."""
    incarnations = {member.name: member.value.incarnation for member in members}
    gone = tuple(sorted(rank.group_rank for name, rank in before.items() if incarnations.get(name) != rank.incarnation))
    stayed = sorted(rank.group_rank for name, rank in before.items() if incarnations.get(name) == rank.incarnation)
    names = {rank.group_rank: name for name, rank in before.items()}
    if (
        not stayed
        or len(gone) > MAX_GONE
        or [member.name for member in members[: len(stayed)]] != [names[rank] for rank in stayed]
    ):
        return None
    return gone, len(stayed)


def carry_over_rank(rank: RankValue, plan: PlanValue) -> RankValue | None:
    """The position in `plan` of the member that had `rank` in the previous plan; None: it changed in a way that must be
    read from the store."""
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
    position = mine - sum(other < mine for other in gone)
    if position and mine - 1 in gone:
        return None
    return dataclasses.replace(rank, group_rank=position, predecessor=rank.predecessor if position else "")
