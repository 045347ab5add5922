"""New ranks from old ones: what a member computes must be what the planner wrote."""

from __future__ import annotations

import dataclasses
import random

import pytest
from elasticjob_runtime.contract import PlanReason
from elasticjob_runtime.membership.actions import ProposePlan
from elasticjob_runtime.membership.eligibility import eligible_members
from elasticjob_runtime.membership.proposal import propose_plan
from elasticjob_runtime.membership.ranks import MAX_GONE, assign_rank, by_location, carry_over_rank, changed

from tests.unit.runtime.membership.builders import make_member, make_plan, make_view, members


@pytest.mark.parametrize("seed", range(200))
def test_a_rank_carried_over_equals_the_one_the_planner_wrote(seed: int) -> None:
    """Any members leave and join, and some are replaced under their name."""
    draw = random.Random(seed)
    size = draw.choice([1, 2, 3, 4, 5, 8, 12, 40])
    old = [make_member(f"m{number:02}") for number in range(size)]
    before = {member.name: assign_rank(old, place) for place, member in enumerate(old)}
    lost = (
        set(draw.sample(range(size), draw.choice([0, 0, 1, 1, 2, size // 2, min(size, 35)]) % size))
        if size > 1
        else set()
    )
    back = [make_member(old[place].name, incarnation="again") for place in sorted(lost) if draw.random() < 0.3]
    new = [
        *(one for place, one in enumerate(old) if place not in lost),
        *back,
        *(make_member(f"n{n}") for n in range(draw.choice([0, 0, 1, 3]))),
    ]
    change = changed(before, new)
    if len(lost) > MAX_GONE:
        assert change is None
        return
    assert change == (tuple(sorted(lost)), size - len(lost))
    head = dataclasses.replace(make_plan("ab").value, size=len(new), follows="1", gone=change[0], stayed=change[1])
    carried = {name: carry_over_rank(rank, head) for name, rank in before.items()}
    for place, member in enumerate(new):
        mine = carried.get(member.name)
        if mine is not None and member.value.incarnation == before[member.name].incarnation:
            assert mine == assign_rank(new, place)
    if len(lost) <= 2 and size == 40:
        assert sum(rank is None for rank in carried.values()) <= 4 * len(lost) + 2, (
            "few members have to read their ranks"
        )
    assert all(carried[old[place].name] is None for place in lost)


def test_no_rank_is_carried_over_to_another_order() -> None:
    old = [make_member(name) for name in "abc"]
    before = {member.name: assign_rank(old, place) for place, member in enumerate(old)}
    assert changed(before, [old[1], old[0], old[2]]) is None
    assert changed(before, [make_member("d"), *old]) is None
    assert changed({}, old) is None


@pytest.mark.parametrize(
    ("now", "locations", "then"),
    [
        ("abcd", {}, "abcd"),
        ("abcd", {"a": "r1/n1", "b": "r2/n2", "c": "r1/n3", "d": "r2/n4"}, "acbd"),
        # Blocks before racks, racks before nodes; the first member stays the first.
        ("abcdef", dict(zip("abcdef", ("B/2/x", "A/1/y", "B/1/z", "A/1/u", "B/2/v", "B/1/w"), strict=True)), "aecfbd"),
        ("abcd", {"a": "n1", "b": "n2", "c": "n1", "d": "n2"}, "acbd"),
        # One that joins comes last in its domain, or after all others in one of its own.
        ("acbde", {"a": "r1/n1", "b": "r2/n2", "c": "r1/n3", "d": "r2/n4", "e": "r1/n5"}, "acebd"),
        ("acbde", {"a": "r1/n1", "b": "r2/n2", "c": "r1/n3", "d": "r2/n4", "e": "r3/n5"}, "acbde"),
        # No member moves after a loss.
        ("cbd", {"b": "r2/n2", "c": "r1/n3", "d": "r2/n4"}, "cbd"),
        # A member whose location is not known stays between those that it was between, if they share no domain.
        ("axbc", {"a": "r1/n1", "b": "r2/n2", "c": "r2/n3"}, "axbc"),
        ("axb", {"a": "r1/n1", "b": "r1/n2"}, "abx"),
    ],
)
def test_neighbours_in_rank_are_neighbours_in_the_network(now: str, locations: dict[str, str], then: str) -> None:
    found = by_location([make_member(name) for name in now], locations)
    assert "".join(member.name for member in found) == then
    assert by_location(found, locations) == found, "an order by location is kept"


def test_ranks_are_chosen_among_the_planned_members_only() -> None:
    """A spare in the first rack replaces no member."""
    view = make_view(
        there=members("abcd"),
        plan=make_plan("abc"),
        settings={"max": 3},
        store={"locations": {"a": "r1/n1", "b": "r2/n2", "c": "r1/n3", "d": "r1/n4"}},
    )
    proposed = propose_plan(view, eligible_members(view), 3, PlanReason.RESIZED)
    assert isinstance(proposed, ProposePlan)
    assert [member.name for member in proposed.members] == ["a", "c", "b"]
