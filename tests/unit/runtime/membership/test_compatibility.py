"""Which members cannot train together: other numbers of worker processes, other contract versions."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import CONTRACT_VERSION, MemberState
from elasticjob_runtime.membership.view import Role, Workers

from tests.unit.runtime.membership.builders import Case, decided, make_member, make_plan, make_view, members

PLAN = make_plan("abc")
SPARE = make_plan("bc", me="a", ranks=None)
LEAVING: dict[str, Any] = {"state": MemberState.LEAVING}
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}


INCOMPATIBLE = {
    "another number of worker processes than the plan's: exit": Case(
        make_view(plan=SPARE, workers=Workers(), settings={"nproc": 2}), "exit CONFIG"
    ),
    "another number of worker processes than the first member's: exit": Case(
        make_view(
            me="b",
            there="ab",
            role=Role.FOLLOWER,
            predecessor="a",
            store={"first_member": make_member("a", nproc=2).value},
        ),
        "exit CONFIG",
    ),
    "the predecessor is incompatible: wait": Case(
        make_view(
            me="c",
            there=members("bc", b={"nproc": 2}),
            role=Role.FOLLOWER,
            predecessor="b",
            store={"first_member": make_member("a").value},
        ),
        "wait",
    ),
    "the first member is incompatible with this one: exit": Case(
        make_view(me="c", there=members("ac", a={"nproc": 2})), "exit CONFIG"
    ),
    "the first member is compatible with itself": Case(
        make_view(there=members("abc", c={"nproc": 2})), "plan 1: a b, Start, 0 restarts"
    ),
    "a leaving first member does not count": Case(
        make_view(
            me="b",
            there="ab",
            role=Role.FOLLOWER,
            predecessor="a",
            store={"first_member": make_member("a", nproc=2, **LEAVING).value},
        ),
        "wait",
    ),
    "another contract version than the leader's: exit": Case(
        make_view(
            me="a",
            there=members("ab", b={"contract": CONTRACT_VERSION + 1}),
            plan=SPARE,
            workers=Workers(),
            role=Role.FOLLOWER,
            predecessor="b",
        ),
        "exit CONFIG",
    ),
    "another contract version than the first member's: exit": Case(
        make_view(
            me="b",
            there="ab",
            role=Role.FOLLOWER,
            predecessor="a",
            store={"first_member": make_member("a", contract=CONTRACT_VERSION + 1).value},
        ),
        "exit CONFIG",
    ),
    "a leader that left does not count": Case(
        make_view(there="a", plan=SPARE, workers=Workers(), role=Role.FOLLOWER, predecessor="c"),
        "watch as follower of b",
    ),
    "a member that trains is never incompatible": Case(make_view(plan=PLAN, settings={"nproc": 2}), "wait"),
}


@pytest.mark.parametrize("name", INCOMPATIBLE)
def test_only_a_member_incompatible_with_the_others_exits(name: str) -> None:
    case = INCOMPATIBLE[name]
    assert decided(case.view) == case.does
