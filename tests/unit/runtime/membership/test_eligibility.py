"""Which members the planner may select, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import MemberState, SpecValue
from elasticjob_runtime.membership.eligibility import eligible_members, may_stay, select_members

from tests.unit.runtime.membership.builders import NOW, answers, make_member, make_plan, make_view, members

LEAVING = {"state": MemberState.LEAVING}
WARMING = {"state": MemberState.WARMING}


def test_survivors_keep_their_rank_order_and_joiners_follow() -> None:
    view = make_view(there=members("abcde", d={"create": 1}), plan=make_plan("ca", me="a"))
    assert [member.name for member in eligible_members(view)] == ["c", "a", "d", "b", "e"]


def test_leaving_importing_and_silent_members_are_not_eligible() -> None:
    there = members("abcd", b=LEAVING, c={"state": MemberState.WARMING})
    view = make_view(there=there, probes=answers("d", reachable=False))
    assert [member.name for member in eligible_members(view)] == ["a"]


@pytest.mark.parametrize(
    ("named", "size", "expected"),
    [([], 2, "ab"), (["c", "d"], 2, "cd"), (["d"], 2, "ad"), (["a", "b", "c", "d"], 3, "abc"), (["unknown"], 2, "ab")],
)
def test_members_that_the_operator_names_are_selected_first(named: list[str], size: int, expected: str) -> None:
    view = make_view(spec=SpecValue(min=1, max=4, members=named))
    among = [make_member(name) for name in "abcd"]
    assert "".join(member.name for member in select_members(view, among, size)) == expected


@pytest.mark.parametrize(
    ("spec", "leaving_since", "expected"),
    [
        ({}, None, True),
        ({"members": ["a", "b"]}, None, True),
        ({"members": ["b", "c"]}, None, False),
        ({"draining": ["a"]}, None, False),
        ({"draining": ["b"]}, None, True),
        ({}, NOW, False),
    ],
    ids=["any", "wanted", "not wanted", "draining", "another drains", "signalled"],
)
def test_a_member_knows_whether_it_stays(spec: dict[str, Any], leaving_since: float | None, expected: bool) -> None:
    view = make_view(spec=SpecValue(min=1, max=4, **spec), leaving_since=leaving_since)
    assert may_stay(view) == expected
