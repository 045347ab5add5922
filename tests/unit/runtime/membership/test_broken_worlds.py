"""A link between two members that carries small messages only does not keep a training from ever taking a step."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import PlanReason
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.actions import ProposePlan, PublishOutcome
from elasticjob_runtime.membership.broken_worlds import MAX_BROKEN
from elasticjob_runtime.membership.view import Role, WorkersState

from tests.unit.runtime.membership.builders import NOW, answers, describe, make_plan, make_view, members, runs

RESET = "Read error [10.0.0.98]:4711: Connection reset by peer"  # b's address
CLOSED = "Connection closed by peer [10.0.0.99]:4711"  # c's


def planner(broken: int, *, stepped: int = 6, errors: Any = None, reports: str = "bc", **fields: Any) -> Any:
    """Some members of plan 7 request another one, because its world broke; `broken` plans have before."""
    known = {name: fields.pop(name) for name in ("suspects", "left_out") if name in fields}
    plan = make_plan("abc", round_number=7, in_place=True, agent_store=True, broken=broken, restarts=1, **known)
    errors = {"b": CLOSED, "c": RESET} if errors is None else errors
    changed = {
        name: {"stores": True, "in_place": 7, "round": 8 if name in reports else 7, "broken": errors.get(name, "")}
        for name in "abc"
    }
    return make_view(
        there=members("abc", **changed), plan=plan, probes=answers("bc"), stores=True, stepped=stepped,
        workers=runs(plan, in_place=True, movable=True), **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("view", "does"),
    [
        pytest.param(planner(0), "plan 9: a b c, Start, 1 restarts, in place", id="another plan may help"),
        pytest.param(planner(MAX_BROKEN - 2), "plan 9: a b c, Start, 1 restarts, in place", id="so far"),
        pytest.param(planner(MAX_BROKEN - 1), "plan 9: a b c, WorkerFailed, 2 restarts", id="it does not: restart"),
        pytest.param(
            planner(MAX_BROKEN - 1, stepped=7),
            "plan 9: a b c, Start, 1 restarts, in place",
            id="a step was taken between",
        ),
        pytest.param(
            planner(MAX_BROKEN - 1, settings={"max_restarts": 1}),
            "outcome failed because of b",
            id="no restarts are left",
        ),
    ],
)
def test_worlds_that_break_again_and_again_count_as_a_failure(view: Any, does: str) -> None:
    assert describe(decide(view, NOW)) == does


@pytest.mark.parametrize(
    ("before", "stepped", "after"), [(0, 6, 1), (3, 6, 4), (3, 7, 1), (MAX_BROKEN - 1, 6, 0)], ids=str
)
def test_a_plan_counts_those_before_it_that_broke(before: int, stepped: int, after: int) -> None:
    action = decide(planner(before, stepped=stepped), NOW)
    assert isinstance(action, ProposePlan)
    assert action.broken == after


@pytest.mark.parametrize(
    ("errors", "reports", "text"),
    [
        pytest.param(None, "bc", f"b and c lost each other ({CLOSED})", id="both say so"),
        pytest.param({"a": CLOSED, "b": CLOSED, "c": RESET}, "abc", "b and c lost each other", id="a third follows"),
        pytest.param({"b": CLOSED}, "b", f"b lost c ({CLOSED})", id="one of them says so"),
        pytest.param({"b": "timed out"}, "b", "b reported timed out", id="no address"),
        pytest.param({}, "b", "b reported no cause", id="no error"),
    ],
)
def test_the_failure_names_who_lost_whom(errors: Any, reports: str, text: str) -> None:
    action = decide(planner(MAX_BROKEN - 1, errors=errors, reports=reports), NOW)
    assert isinstance(action, ProposePlan)
    assert action.plan_reason is PlanReason.WORKER_FAILED
    assert text in action.message
    ends = decide(planner(MAX_BROKEN - 1, errors=errors, reports=reports, settings={"max_restarts": 1}), NOW)
    assert isinstance(ends, PublishOutcome)
    assert text in ends.outcome.message


ENOUGH: dict[str, Any] = {"settings": {"min": 2, "max_restarts": 1}}
AGAIN = {
    "the same two are named again": (("b", "c"), None, ENOUGH, "plan 9: a b, MEMBER_LOST", "c1"),
    "one of them is": (("a", "b"), None, ENOUGH, "plan 9: a c, MEMBER_LOST", "b1"),
    "others are: these two restart first": (("a", "d"), None, {}, "plan 9: a b c, WORKER_FAILED", ""),
    "no member is": (("b", "c"), {"b": "timed out"}, {}, "plan 9: a b c, WORKER_FAILED", ""),
    "the others are too few": (("b", "c"), None, {"settings": {"min": 3}}, "plan 9: a b c, WORKER_FAILED", ""),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_member_that_is_named_again_after_a_restart_is_left_out(name: str) -> None:
    suspects, errors, fields, does, left_out = AGAIN[name]
    action = decide(planner(MAX_BROKEN - 1, errors=errors, suspects=suspects, **fields), NOW)
    assert isinstance(action, ProposePlan)
    who = " ".join(member.name for member in action.members)
    assert f"plan {action.round}: {who}, {action.plan_reason.name}" == does
    assert (action.left_out, action.in_place) == (left_out, bool(left_out))
    assert action.restart_count == (1 if left_out else 2)
    assert not left_out or f"{left_out[0]} is left out: 5 worlds in a row broke" in action.message


def test_a_plan_keeps_who_was_named_and_who_is_left_out() -> None:
    first = decide(planner(MAX_BROKEN - 1), NOW)
    assert isinstance(first, ProposePlan)
    assert (first.suspects, first.left_out) == (("b", "c"), "")
    later = decide(planner(0, suspects=("b", "c"), left_out="c1"), NOW)
    assert isinstance(later, ProposePlan)
    assert (later.suspects, later.left_out, [member.name for member in later.members]) == (("b", "c"), "c1", ["a", "b"])
    gone = decide(planner(0, suspects=("b", "c"), left_out="d1"), NOW)
    assert isinstance(gone, ProposePlan)
    assert gone.left_out == ""


def test_a_member_that_is_left_out_stops_its_workers_and_exits() -> None:
    plan = make_plan("ab", me="c", round_number=9, in_place=True, agent_store=True, left_out="c1")
    before = make_plan("abc", me="c", round_number=8, in_place=True, agent_store=True)
    view = make_view(me="c", plan=plan, role=Role.FOLLOWER, predecessor="b", workers=runs(before, movable=True))
    assert describe(decide(view, NOW)) == "stop"
    view = make_view(me="c", plan=plan, role=Role.FOLLOWER, predecessor="b", workers=runs(before, WorkersState.NONE))
    assert describe(decide(view, NOW)) == "exit CANNOT_JOIN"
    assert (
        describe(decide(make_view(me="b", plan=plan, role=Role.FOLLOWER, predecessor="a"), NOW)) != "exit CANNOT_JOIN"
    )
