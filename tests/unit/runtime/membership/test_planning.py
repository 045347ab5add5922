"""The planner's judgement, rule by rule: what it does about who is there, who is lost, who failed, who is wanted."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import MemberState, SpecValue
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.actions import (
    ProposePlan,
)
from elasticjob_runtime.membership.eligibility import eligible_members, select_members
from elasticjob_runtime.membership.failures import first_failure
from elasticjob_runtime.membership.planner import next_plan
from elasticjob_runtime.membership.view import (
    WorkersState,
)

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    make_failure,
    make_member,
    make_plan,
    make_view,
    members,
    runs,
    suspicion,
    told,
)

PLAN = make_plan("abc")
TWO = make_plan("ab")
USED_UP = make_plan("abc", restarts=3)
LEAVING = {"state": MemberState.LEAVING}
WARMING = {"state": MemberState.WARMING}
DONE = {"state": MemberState.SUCCEEDED, "round": 1}
JUST = {"seen_at": NOW - 0.2}

FIRST_PLAN = {
    "everybody is there": Case(make_view(), "plan 1: a b c, Start, 0 restarts"),
    "too few": Case(make_view(there="a"), "wait"),
    "enough, but not all: a moment for the rest": Case(make_view(there=members("ab", b=JUST)), "wait 1.8 s"),
    "enough, and nobody came for a while": Case(make_view(there="ab"), "plan 1: a b, Start, 0 restarts"),
    "all the operator names are there: no waiting": Case(
        make_view(there=members("ab", b=JUST), spec=SpecValue(min=2, max=3, members=["a", "b"])),
        "plan 1: a b, Start, 0 restarts",
    ),
    "allowed sizes: nobody waits for one who would be a spare": Case(
        make_view(there=members("abcd", d=JUST), spec=SpecValue(min=2, max=5, allowed=[2, 4])),
        "plan 1: a b c d, Start, 0 restarts",
    ),
    "allowed sizes: the third is a spare": Case(
        make_view(spec=SpecValue(min=2, max=3, allowed=[2])), "plan 1: a b, Start, 0 restarts"
    ),
    "one is still importing: it is waited for": Case(
        make_view(there=members("abc", c={"state": MemberState.WARMING, "seen_at": NOW - 20})), "wait 100 s"
    ),
    "one imports for ever: it is not waited for": Case(
        make_view(there=members("abc", c={"state": MemberState.WARMING, "seen_at": NOW - 130})),
        "plan 1: a b, Start, 0 restarts",
    ),
    "the job ran before, its plan is lost, and one is still importing: not for long": Case(
        make_view(there=members("abc", a={"round": 4}, c={**WARMING, "seen_at": NOW - 1})), "wait 2 s"
    ),
    "the job ran before, and one imports for longer: those that are ready go on": Case(
        make_view(there=members("abc", a={"round": 4}, c={**WARMING, "seen_at": NOW - 3})),
        "plan 5: a b, Start, 0 restarts",
    ),
    "two are still importing: the later one is waited for": Case(
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
    "joiners are ranked in the order of registration": Case(
        make_view(there=members("abc", a={"create": 50})), "plan 1: b c a, Start, 0 restarts"
    ),
    "joiners are ranked in the order of the spec": Case(
        make_view(spec=SpecValue(min=2, max=3, members=["c", "a", "b"])), "plan 1: c a b, Start, 0 restarts"
    ),
    "incompatible members are not planned": Case(
        make_view(there=members("abcd", b={"nproc": 2})), "plan 1: a c d, Start, 0 restarts"
    ),
    "draining members are not planned": Case(
        make_view(there="abcd", spec=SpecValue(min=2, max=3, draining=["a"])), "plan 1: b c d, Start, 0 restarts"
    ),
    "one did not answer, and too few are left: it is asked again": Case(
        make_view(there="ab", probes=answers("b", ago=2.0, reachable=False)), "ask b"
    ),
    "one did not answer just now, and too few are left": Case(
        make_view(there="ab", probes=answers("b", ago=0.4, reachable=False)), "wait 0.6 s"
    ),
    "the store came back empty: whoever led may put the plan back": Case(
        make_view(there=members("abc", c={"round": 4, "seen_at": NOW - 1})), "wait 4 s"
    ),
    "the store came back empty: the time runs from the first who knew the plan": Case(
        make_view(there=members("abc", b={"round": 4, "seen_at": NOW - 3}, c={"round": 4, "seen_at": NOW - 1})),
        "wait 2 s",
    ),
    "the store came back empty, and I saw a plan before": Case(
        make_view(there=members("abc", a={"seen_at": NOW - 1}), store={"last_round": 4}), "wait 4 s"
    ),
    "the store came back empty, and nobody puts the plan back: rounds go on": Case(
        make_view(there=members("abc", c={"round": 4})), "plan 5: a b c, Start, 0 restarts"
    ),
    "the store came back empty: the restarts stay counted": Case(
        make_view(workers=runs(make_plan("abc", round_number=4, restarts=2))), "plan 5: a b c, Start, 2 restarts"
    ),
}

REPAIR = {
    "nothing is wrong": Case(make_view(plan=PLAN), "nothing"),
    "a lost member: the others are asked first": Case(make_view(there="abd", plan=PLAN), "ask b"),
    "a lost member is free": Case(
        make_view(there="ab", plan=USED_UP, probes=answers("b")), "plan 2: a b, MemberLost, 3 restarts"
    ),
    "a lost member and a failure: the loss was the cause, so it is free": Case(
        make_view(there="ab", plan=USED_UP, probes=answers("b"), failures=[make_failure("b")]),
        "plan 2: a b, MemberLost, 3 restarts",
    ),
    "a failure: are all still there?": Case(make_view(plan=PLAN, failures=[make_failure("b")]), "ask b c"),
    "a failure: an answer from before it does not count": Case(
        make_view(
            plan=PLAN, failures=[make_failure("b")], probes=answers("bc", ago=0.9), store={"failed_at": NOW - 0.5}
        ),
        "ask b c",
    ),
    "a failure, and all are there: it counts": Case(
        make_view(plan=PLAN, failures=[make_failure("b")], probes=answers("bc")),
        "plan 2: a b c, WorkerFailed, 1 restarts",
    ),
    "a failure, and one does not answer: a loss": Case(
        make_view(plan=PLAN, failures=[make_failure("b")], probes={**answers("b"), **answers("c", reachable=False)}),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
    "a failure beyond the budget ends the job, with the first failing rank": Case(
        make_view(
            plan=USED_UP,
            failures=[make_failure("c", time=8.0), make_failure("b", time=7.0), make_failure("a", time=9.0)],
            probes=answers("bc"),
        ),
        "outcome failed because of b",
    ),
    "a failure beyond the budget: the others may have failed earlier": Case(
        make_view(plan=USED_UP, failures=[make_failure("b")], probes=answers("bc"), store={"failed_at": NOW - 0.25}),
        "wait 0.75 s",
    ),
    "the operator's budget counts, not the flag": Case(
        make_view(
            plan=PLAN,
            spec=SpecValue(min=2, max=3, max_restarts=0),
            failures=[make_failure("b")],
            probes=answers("bc"),
        ),
        "outcome failed because of b",
    ),
    "a leaving member: nobody is asked, the others go on at once": Case(
        make_view(there=members("abc", c=LEAVING), plan=USED_UP), "plan 2: a b, MemberLeft, 3 restarts"
    ),
    "a leaving leader": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, me="b"), "plan 2: b c, MemberLeft, 0 restarts"
    ),
    "draining is leaving": Case(
        make_view(plan=PLAN, spec=SpecValue(min=2, max=3, draining=["b"])), "plan 2: a c, MemberLeft, 0 restarts"
    ),
    "a spare is promoted": Case(
        make_view(there="abd", plan=PLAN, probes=answers("b")), "plan 2: a b d, MemberLost, 0 restarts"
    ),
    "a spare that does not answer is not": Case(
        make_view(there="abd", plan=PLAN, probes={**answers("b"), **answers("d", reachable=False)}),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
    "a joiner under an old name is a joiner": Case(
        make_view(
            there=members("abc", a={"incarnation": "a2", "create": 200}),
            plan=PLAN,
            me="b",
            probes={**answers("c"), **answers("a", incarnation="2")},
        ),
        "plan 2: b c a, MemberLost, 0 restarts",
    ),
    "an answer of an earlier incarnation does not count": Case(
        make_view(
            there=members("abc", b={"incarnation": "b2", "create": 200}),
            plan=PLAN,
            probes={**answers("c"), **answers("b", reachable=False)},
        ),
        "ask b",
    ),
    "who registered again in the same life was not lost": Case(
        make_view(there=members("abc", b={"create": 200}), plan=PLAN), "nothing"
    ),
    "ranks are stable: survivors keep their order": Case(
        make_view(
            there=members("bca", c={"create": 1}),
            plan=make_plan("bdca", me="a"),
            probes=answers("bc"),
            spec=SpecValue(min=2, max=4),
        ),
        "plan 2: b c a, MemberLost, 0 restarts",
    ),
    "too few are left: wait, and keep what runs": Case(make_view(there="a", plan=PLAN), "wait"),
    "too few are left, one only silent: it is asked again": Case(
        make_view(there="ab", plan=TWO, probes=answers("b", ago=3.0, reachable=False)), "ask b"
    ),
    "allowed sizes: five of eight train as four": Case(
        make_view(
            there="abcde",
            plan=make_plan("abcdefgh"),
            spec=SpecValue(min=2, max=8, allowed=[2, 4, 8]),
            probes=answers("bcde"),
        ),
        "plan 2: a b c d, MemberLost, 0 restarts",
    ),
    "the store lost some ranks": Case(
        make_view(plan=make_plan("ab", size=3, ranks=make_plan("ab").ranks), probes=answers("b")),
        "plan 2: a b c, MemberLost, 0 restarts",
    ),
    "the store lost its members a moment ago: they may register again": Case(
        make_view(there=members("a", a={"round": 1, "seen_at": NOW - 2}), plan=PLAN), "wait 3 s"
    ),
    "the store lost its members, and they do not come": Case(
        make_view(there=members("ab", a={"round": 1, "seen_at": NOW - 6}), plan=PLAN, probes=answers("b")),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
    "the store lost its members a moment ago, and all are there again": Case(
        make_view(there=members("abc", a={"round": 1, "seen_at": NOW - 1}), plan=PLAN), "nothing"
    ),
    "the store was set back: the restarts stay counted": Case(
        make_view(
            there=members("abc", b={"round": 7}), plan=PLAN, workers=runs(make_plan("abc", round_number=7, restarts=2))
        ),
        "plan 8: a b c, Start, 2 restarts",
    ),
    "the store was set back: members know later plans": Case(
        make_view(there=members("abc", b={"round": 7}), plan=PLAN), "plan 8: a b c, Start, 0 restarts"
    ),
    "who answered some time ago is not asked without a reason": Case(
        make_view(plan=PLAN, probes=answers("bc", ago=60.0)), "nothing"
    ),
    "two fell silent: the one asked longer ago is asked first": Case(
        make_view(
            there="abcd",
            plan=TWO,
            probes={**answers("c", ago=0.75, reachable=False), **answers("d", ago=0.25, reachable=False)},
        ),
        "wait 0.25 s",
    ),
    "a neighbour does not hear one: the planner asks for itself": Case(
        make_view(plan=PLAN, store={"suspicions": (suspicion("c", "b"),)}), "ask c"
    ),
    "a neighbour does not hear one, who answers the planner: one bad link evicts nobody": Case(
        make_view(plan=PLAN, store={"suspicions": (suspicion("c", "b"),)}, probes=answers("c", ago=0.4)), "wait 0.6 s"
    ),
    "a neighbour does not hear one, nor does the planner": Case(
        make_view(
            plan=PLAN,
            store={"suspicions": (suspicion("c", "b"),)},
            probes={**answers("b"), **answers("c", reachable=False)},
        ),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
}

SUCCESS = {
    "all have succeeded": Case(make_view(there=members("abc", a=DONE, b=DONE, c=DONE), plan=PLAN), "outcome succeeded"),
    "one still trains": Case(make_view(there=members("abc", a=DONE, b=DONE), plan=PLAN), "nothing"),
    "a success of an earlier plan does not count": Case(
        make_view(there=members("ab", a=DONE, b={**DONE, "round": 0}), plan=TWO), "nothing"
    ),
    "while some have succeeded, nobody joins": Case(make_view(there=members("abc", a=DONE), plan=TWO), "nothing"),
    "a member is lost after others have succeeded: they train again from the last checkpoint": Case(
        make_view(there=members("ab", a=DONE, b=DONE), plan=PLAN, probes=answers("b")),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
}

RESIZE = {
    "a joiner is asked before it is planned": Case(make_view(plan=TWO), "ask c"),
    "a joiner joins at the end": Case(
        make_view(there=members("abc", c={"create": 1}), plan=TWO, probes=answers("c")),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "a join does not cost a restart": Case(
        make_view(plan=make_plan("ab", restarts=3), probes=answers("c")), "plan 2: a b c, MemberJoined, 3 restarts"
    ),
    "joins are batched": Case(
        make_view(there=members("abc", c={"seen_at": NOW - 0.25}), plan=TWO, spec=SpecValue(min=2, max=5)),
        "wait 0.75 s",
    ),
    "joins are batched from when they are ready, not from when they came": Case(
        make_view(
            there=members("abc", c={"seen_at": NOW - 5, "ready_at": NOW - 0.25}), plan=TWO, spec=SpecValue(min=2, max=5)
        ),
        "wait 0.75 s",
    ),
    "one is ready, another still imports: one restart for both": Case(
        make_view(there=members("abcd", c={"ready_at": NOW - 1}, d=WARMING), plan=TWO, spec=SpecValue(min=2, max=5)),
        "wait 2 s",
    ),
    "one still imports, for too long: the other joins": Case(
        make_view(
            there=members("abcd", c={"ready_at": NOW - 3}, d=WARMING),
            plan=TWO,
            spec=SpecValue(min=2, max=5),
            probes=answers("c"),
        ),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "both are ready, and all wanted are there: nobody is waited for": Case(
        make_view(
            there=members("abcd", c={"ready_at": NOW - 0.25}, d={"ready_at": NOW}),
            plan=TWO,
            spec=SpecValue(min=2, max=4),
            probes=answers("cd"),
        ),
        "plan 2: a b c d, MemberJoined, 0 restarts",
    ),
    "who imports would make no larger group": Case(
        make_view(
            there=members("abcde", d=WARMING, e=WARMING),
            plan=TWO,
            spec=SpecValue(min=2, max=8, allowed=[2, 3, 8]),
            probes=answers("c"),
        ),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "an importing member that is incompatible or leaving is not waited for": Case(
        make_view(
            there=members("abcde", c={"ready_at": NOW - 1}, d={**WARMING, "nproc": 2}, e=WARMING),
            plan=TWO,
            spec=SpecValue(min=2, max=5, draining=["e"]),
            probes=answers("c"),
        ),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "after a loss nobody is waited for": Case(
        make_view(there=members("abd", d=WARMING), plan=PLAN, probes=answers("b")),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
    "joins are not batched when everybody wanted is there": Case(
        make_view(there=members("abc", c={"seen_at": NOW - 0.25}), plan=TWO, probes=answers("c")),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "allowed sizes: the last one that fits is not waited for": Case(
        make_view(
            there=members("abcd", d={"seen_at": NOW - 0.25}),
            plan=TWO,
            spec=SpecValue(min=2, max=5, allowed=[2, 4]),
            probes=answers("cd"),
        ),
        "plan 2: a b c d, MemberJoined, 0 restarts",
    ),
    "allowed sizes: one more does not fit": Case(
        make_view(plan=TWO, spec=SpecValue(min=2, max=4, allowed=[2, 4])), "nothing"
    ),
    "a joiner that is still importing stops nobody": Case(
        make_view(there=members("abc", c={"state": MemberState.WARMING}), plan=TWO), "nothing"
    ),
    "a joiner that cannot be reached is asked again later": Case(
        make_view(plan=TWO, probes=answers("c", ago=0.5, reachable=False)), "wait 0.5 s"
    ),
    "a joiner that could not be reached is asked again": Case(
        make_view(plan=TWO, probes=answers("c", ago=1.5, reachable=False)), "ask c"
    ),
    "a joiner without a port to ask is taken as it is": Case(
        make_view(there=members("abc", c={"peer_port": 0}), plan=TWO), "plan 2: a b c, MemberJoined, 0 restarts"
    ),
    "above the maximum: a spare": Case(make_view(there="abcd", plan=PLAN), "nothing"),
    "fewer are wanted: the last ranks go": Case(
        make_view(plan=PLAN, spec=SpecValue(min=2, max=3, wanted=2)), "plan 2: a b, Resized, 0 restarts"
    ),
    "fewer are wanted, and the operator says who stays": Case(
        make_view(plan=PLAN, spec=SpecValue(min=2, max=3, wanted=2, members=["b", "c"])),
        "plan 2: b c, Resized, 0 restarts",
    ),
    "more are wanted: the spare joins": Case(
        make_view(there="abcd", plan=PLAN, spec=SpecValue(min=2, max=4, wanted=4), probes=answers("d")),
        "plan 2: a b c d, MemberJoined, 0 restarts",
    ),
    "an incompatible member does not join": Case(make_view(there=members("abc", c={"nproc": 2}), plan=TWO), "nothing"),
    "a minimum above what trains stops nobody": Case(make_view(plan=PLAN, spec=SpecValue(min=4, max=5)), "nothing"),
}


@pytest.mark.parametrize("name", FIRST_PLAN)
def test_the_first_plan(name: str) -> None:
    assert told(next_plan(FIRST_PLAN[name].view, NOW)) == FIRST_PLAN[name].does


@pytest.mark.parametrize("name", REPAIR)
def test_repair(name: str) -> None:
    assert told(next_plan(REPAIR[name].view, NOW)) == REPAIR[name].does


@pytest.mark.parametrize("name", SUCCESS)
def test_success(name: str) -> None:
    assert told(next_plan(SUCCESS[name].view, NOW)) == SUCCESS[name].does


@pytest.mark.parametrize("name", RESIZE)
def test_resize(name: str) -> None:
    assert told(next_plan(RESIZE[name].view, NOW)) == RESIZE[name].does


def test_the_verdict_says_which_rank_failed_and_that_the_budget_is_used() -> None:
    failure = make_failure("b", rank=1, message="loss is nan")
    action = next_plan(make_view(plan=USED_UP, failures=[failure], probes=answers("bc")), NOW)
    assert action is not None
    assert action.reason == "rank 1 on b failed: loss is nan; 3 of 3 restarts used"
    outcome = action.outcome  # type: ignore[attr-defined]
    assert outcome.failure == dataclasses.asdict(failure)


def test_a_plan_names_the_revision_that_it_follows() -> None:
    action = next_plan(make_view(there=members("abc", c=LEAVING), plan=PLAN), NOW)
    assert action is not None
    assert action.expected_mod_revision == PLAN.mod_revision  # type: ignore[attr-defined]


def test_the_first_plan_follows_none() -> None:
    action = next_plan(make_view(), NOW)
    assert action is not None
    assert action.expected_mod_revision == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "generation"),
    [
        pytest.param(None, 3, id="etcd lost the spec too, and no operator has written it again"),
        pytest.param(SpecValue(min=2, max=3, store_generation=2), 3, id="an operator that was set back"),
        pytest.param(SpecValue(min=2, max=3, store_generation=4), 4, id="another etcd"),
    ],
)
def test_a_later_plan_never_has_a_smaller_store_generation(spec: SpecValue | None, generation: int) -> None:
    """Else the group's own checkpoints would refuse it: its fencing token would be smaller than the one they were saved
    under."""
    ran = dataclasses.replace(PLAN, value=dataclasses.replace(PLAN.value, store_generation=3))
    action = next_plan(make_view(spec=spec, workers=runs(ran)), NOW)
    assert isinstance(action, ProposePlan)
    assert action.store_generation == generation


def test_survivors_keep_their_rank_order_and_joiners_follow() -> None:
    view = make_view(there=members("abcde", d={"create": 1}), plan=make_plan("ca", me="a"))
    assert [member.name for member in eligible_members(view)] == ["c", "a", "d", "b", "e"]


def test_leaving_warming_and_silent_members_are_not_eligible() -> None:
    there = members("abcd", b=LEAVING, c={"state": MemberState.WARMING})
    view = make_view(there=there, probes=answers("d", reachable=False))
    assert [member.name for member in eligible_members(view)] == ["a"]


@pytest.mark.parametrize(
    ("named", "size", "expected"),
    [([], 2, "ab"), (["c", "d"], 2, "cd"), (["d"], 2, "ad"), (["a", "b", "c", "d"], 3, "abc"), (["nobody"], 2, "ab")],
)
def test_members_that_the_operator_names_are_selected_first(named: list[str], size: int, expected: str) -> None:
    view = make_view(spec=SpecValue(min=1, max=4, members=named))
    among = [make_member(name) for name in "abcd"]
    assert "".join(member.name for member in select_members(view, among, size)) == expected


def test_the_first_failure_is_the_earliest_by_time() -> None:
    assert first_failure([make_failure("a", time=5.0), make_failure("b", time=4.0)]).member == "b"


def test_workers_that_were_not_asked_for_do_not_matter_to_the_planner() -> None:
    view = make_view(plan=PLAN, workers=runs(PLAN, WorkersState.STOPPING))
    assert next_plan(view, NOW) is None


@pytest.mark.parametrize("ago", [0.5, 2.0], ids=["answered", "to be asked"])
def test_nothing_is_told_of_a_lost_member_that_the_plan_does_without(ago: float) -> None:
    """It is asked while its lease lives, for it may be back; but nobody waits for it."""
    view = make_view(plan=make_plan("ab", round_number=2), probes=answers("c", reachable=False, ago=ago))
    action = decide(view, NOW)
    assert action.reason == "training: plan 2, group rank 0 of 2"
    assert action.until is not None or told(action) == "ask c"


def test_what_a_job_below_its_minimum_waits_for_is_said_once() -> None:
    reasons = {
        decide(make_view(there="ab", plan=make_plan("ab"), probes=answers("b", reachable=False, ago=ago)), NOW).reason
        for ago in (0.5, 2.0)
    }
    assert len(reasons) == 1, reasons
    assert "at least 2 needed" in reasons.pop()
