"""Which members cannot train together: other numbers of worker processes, other contract versions."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import CONTRACT_VERSION, MemberState
from elasticjob_runtime.membership.view import Role, Workers

from tests.unit.runtime.membership.builders import case, decided, make_member, make_plan, members

PLAN = make_plan("abc")
SPARE = make_plan("bc", me="a", ranks=None)
LEAVING: dict[str, Any] = {"state": MemberState.LEAVING}
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}


INCOMPATIBLE = {
    "another number of worker processes than the plan's: exit":
        case("exit CONFIG", plan=SPARE, workers=Workers(), settings={"nproc": 2}),
    "another number of worker processes than the first member's: exit":
        case("exit CONFIG", there="ab", **FOLLOWER, first_member=make_member("a", nproc=2).value),
    "the predecessor is incompatible: wait":
        case("wait", me="c", there=members("bc", b={"nproc": 2}), role=Role.FOLLOWER, predecessor="b",
            first_member=make_member("a").value),
    "the first member is incompatible with this one: exit":
        case("exit CONFIG", me="c", there=members("ac", a={"nproc": 2})),
    "the first member is compatible with itself":
        case("plan 1: a b, Start, 0 restarts", there=members("abc", c={"nproc": 2})),
    "a leaving first member does not count":
        case("wait", there="ab", **FOLLOWER, first_member=make_member("a", nproc=2, **LEAVING).value),
    "another contract version than the leader's: exit":
        case("exit CONFIG", me="a", there=members("ab", b={"contract": CONTRACT_VERSION + 1}), plan=SPARE,
            workers=Workers(), role=Role.FOLLOWER, predecessor="b"),
    "another contract version than the first member's: exit":
        case("exit CONFIG", there="ab", **FOLLOWER, first_member=make_member("a", contract=CONTRACT_VERSION + 1).value),
    "a leader that left does not count":
        case("watch as follower of b", there="a", plan=SPARE, workers=Workers(), role=Role.FOLLOWER, predecessor="c"),
    "a member that trains is never incompatible": case("wait", plan=PLAN, settings={"nproc": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", INCOMPATIBLE)
def test_only_a_member_incompatible_with_the_others_exits(name: str) -> None:
    case = INCOMPATIBLE[name]
    assert decided(case.view) == case.does
