"""When the planner makes a job's first plan, and which members are in it."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import MemberState, SpecValue
from elasticjob_runtime.membership.actions import ProposePlan
from elasticjob_runtime.membership.planner import next_plan

from tests.unit.runtime.membership.builders import NOW, Case, answers, describe, make_plan, make_view, members, runs

PLAN = make_plan("abc")
WARMING = {"state": MemberState.WARMING}
JUST = {"seen_at": NOW - 0.2}


FIRST_PLAN = {
    "all members are there: plan": Case(make_view(), "plan 1: a b c, Start, 0 restarts"),
    "too few members: wait": Case(make_view(there="a"), "wait"),
    "enough members, but not all: wait briefly for the rest": Case(
        make_view(there=members("ab", b=JUST)), "wait 1.8 s"
    ),
    "enough members, and no other came for a while: plan": Case(
        make_view(there="ab"), "plan 1: a b, Start, 0 restarts"
    ),
    "all members that are wanted are there: plan at once": Case(
        make_view(there=members("ab", b=JUST), spec=SpecValue(min=2, max=3, wanted=2)),
        "plan 1: a b, Start, 0 restarts",
    ),
    "allowed sizes: do not wait for a member that would be a spare": Case(
        make_view(there=members("abcd", d=JUST), spec=SpecValue(min=2, max=5, allowed=[2, 4])),
        "plan 1: a b c d, Start, 0 restarts",
    ),
    "allowed sizes: the third member is a spare": Case(
        make_view(spec=SpecValue(min=2, max=3, allowed=[2])), "plan 1: a b, Start, 0 restarts"
    ),
    "a member is still importing: wait": Case(
        make_view(there=members("abc", c={"state": MemberState.WARMING, "seen_at": NOW - 20})), "wait 100 s"
    ),
    "a member imports for too long: plan without it": Case(
        make_view(there=members("abc", c={"state": MemberState.WARMING, "seen_at": NOW - 130})),
        "plan 1: a b, Start, 0 restarts",
    ),
    "the plan of a running job is lost, and a member is importing: wait briefly": Case(
        make_view(there=members("abc", a={"round": 4}, c={**WARMING, "seen_at": NOW - 1})), "wait 2 s"
    ),
    "the plan of a running job is lost, and a member imports for longer: plan without it": Case(
        make_view(there=members("abc", a={"round": 4}, c={**WARMING, "seen_at": NOW - 3})),
        "plan 5: a b, Start, 0 restarts",
    ),
    "two members are importing: wait for the later one": Case(
        make_view(
            there=members(
                "abcd",
                c={"state": MemberState.WARMING, "seen_at": NOW - 20},
                d={"state": MemberState.WARMING, "seen_at": NOW - 5},
            ),
            spec=SpecValue(min=2, max=4),
        ),
        "wait 115 s",
    ),
    "joiners get ranks in the order of their names": Case(
        make_view(there=members("abc", a={"create": 50})), "plan 1: a b c, Start, 0 restarts"
    ),
    "incompatible members are not planned": Case(
        make_view(there=members("abcd", b={"nproc": 2})), "plan 1: a c d, Start, 0 restarts"
    ),
    "draining members are not planned": Case(
        make_view(there="abcd", spec=SpecValue(min=2, max=3, draining=["a"])), "plan 1: b c d, Start, 0 restarts"
    ),
    "a member did not respond, and too few are left: probe it again": Case(
        make_view(there="ab", probes=answers("b", ago=2.0, reachable=False)), "probe b"
    ),
    "a member did not respond just now, and too few are left: wait": Case(
        make_view(there="ab", probes=answers("b", ago=0.4, reachable=False)), "wait 0.6 s"
    ),
    "the store is empty again: the leader may restore the plan": Case(
        make_view(there=members("abc", c={"round": 4, "seen_at": NOW - 1})), "wait 4 s"
    ),
    "the store is empty again: the wait starts with the first member that knew the plan": Case(
        make_view(there=members("abc", b={"round": 4, "seen_at": NOW - 3}, c={"round": 4, "seen_at": NOW - 1})),
        "wait 2 s",
    ),
    "the store is empty again, and this member knew a plan: wait for the leader": Case(
        make_view(there=members("abc", a={"seen_at": NOW - 1}), store={"last_round": 4}), "wait 4 s"
    ),
    "the store is empty again, and the plan is not restored: rounds continue": Case(
        make_view(there=members("abc", c={"round": 4})), "plan 5: a b c, Start, 0 restarts"
    ),
    "the store is empty again: the restart count is kept": Case(
        make_view(workers=runs(make_plan("abc", round_number=4, restarts=2))), "plan 5: a b c, Start, 2 restarts"
    ),
}


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
