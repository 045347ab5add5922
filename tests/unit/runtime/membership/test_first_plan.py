"""When the planner makes a job's first plan, and which members are in it."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import MemberState, SpecValue
from elasticjob_runtime.membership.actions import ProposePlan
from elasticjob_runtime.membership.planner import next_plan

from tests.unit.runtime.membership.builders import NOW, answers, case, describe, make_plan, make_view, members, runs

PLAN = make_plan("abc")
WARMING = {"state": MemberState.WARMING}
JUST = {"seen_at": NOW - 0.2}


FIRST_PLAN = {
    "all members are there: plan": case("plan 1: a b c, Start, 0 restarts"),
    "too few members: wait": case("wait", there="a"),
    "enough members, but not all: wait briefly for the rest": case("wait 1.8 s", there=members("ab", b=JUST)),
    "enough members, and no other came for a while: plan": case("plan 1: a b, Start, 0 restarts", there="ab"),
    "all members that are wanted are there: plan at once":
        case("plan 1: a b, Start, 0 restarts", there=members("ab", b=JUST), spec=SpecValue(min=2, max=3, wanted=2)),
    "allowed sizes: do not wait for a member that would be a spare":
        case("plan 1: a b c d, Start, 0 restarts", there=members("abcd", d=JUST),
            spec=SpecValue(min=2, max=5, allowed=[2, 4])),
    "allowed sizes: the third member is a spare":
        case("plan 1: a b, Start, 0 restarts", spec=SpecValue(min=2, max=3, allowed=[2])),
    "a member is still importing: wait": case("wait 100 s", there=members("abc", c={**WARMING, "seen_at": NOW - 20})),
    "a member imports for too long: plan without it":
        case("plan 1: a b, Start, 0 restarts", there=members("abc", c={**WARMING, "seen_at": NOW - 130})),
    "the plan of a running job is lost, and a member is importing: wait briefly":
        case("wait 2 s", there=members("abc", a={"round": 4}, c={**WARMING, "seen_at": NOW - 1})),
    "the plan of a running job is lost, and a member imports for longer: plan without it":
        case("plan 5: a b, Start, 0 restarts", there=members("abc", a={"round": 4}, c={**WARMING, "seen_at": NOW - 3})),
    "two members are importing: wait for the later one":
        case("wait 115 s", there=members("abcd", c={**WARMING, "seen_at": NOW - 20}, d={**WARMING, "seen_at": NOW - 5}),
            spec=SpecValue(min=2, max=4)),
    "joiners get ranks in the order of their names":
        case("plan 1: a b c, Start, 0 restarts", there=members("abc", a={"create": 50})),
    "incompatible members are not planned":
        case("plan 1: a c d, Start, 0 restarts", there=members("abcd", b={"nproc": 2})),
    "draining members are not planned":
        case("plan 1: b c d, Start, 0 restarts", there="abcd", spec=SpecValue(min=2, max=3, draining=["a"])),
    "a member did not respond, and too few are left: probe it again":
        case("probe b", there="ab", probes=answers(silent="b", ago=2.0)),
    "a member did not respond just now, and too few are left: wait":
        case("wait 0.6 s", there="ab", probes=answers(silent="b", ago=0.4)),
    "the store is empty again: another member may restore the plan":
        case("wait 5 s", there=members("abc", c={"round": 4, "seen_at": NOW - 1})),
    "the store is empty again: the wait starts with the last member that knew the plan":
        case("wait 5 s", there=members("abc", b={"round": 4, "seen_at": NOW - 3}, c={"round": 4, "seen_at": NOW - 1})),
    "the store is empty again, and this member knew a plan: wait for those who run it":
        case("wait 5 s", there=members("abc", a={"seen_at": NOW - 1}), last_round=4),
    "the store is empty again, and the plan is not restored: rounds continue":
        case("plan 5: a b c, Start, 0 restarts", there=members("abc", c={"round": 4})),
    "the store is empty again: the restart count is kept":
        case("plan 5: a b c, Start, 2 restarts", workers=runs(make_plan("abc", round_number=4, restarts=2))),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST_PLAN)
def test_the_planner_makes_the_first_plan(name: str) -> None:
    assert describe(next_plan(FIRST_PLAN[name].view, NOW)) == FIRST_PLAN[name].does


def test_the_first_plan_requires_that_there_is_none() -> None:
    action = next_plan(make_view(), NOW)
    assert action is not None
    assert action.expected_mod_revision == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "generation"),
    [
        pytest.param(None, 3, id="etcd lost the spec too, and the operator has not rewritten it"),
        pytest.param(SpecValue(min=2, max=3, store_generation=2), 3, id="the operator's generation went back"),
        pytest.param(SpecValue(min=2, max=3, store_generation=4), 4, id="the etcd was replaced"),
    ],
)
def test_a_later_plan_never_has_a_smaller_store_generation(spec: SpecValue | None, generation: int) -> None:
    """Otherwise the group could not continue its own checkpoints, which were saved under a larger fencing token."""
    ran = dataclasses.replace(PLAN, value=dataclasses.replace(PLAN.value, store_generation=3))
    action = next_plan(make_view(spec=spec, workers=runs(ran)), NOW)
    assert isinstance(action, ProposePlan)
    assert action.store_generation == generation
