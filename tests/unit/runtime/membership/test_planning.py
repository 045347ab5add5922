"""What the planner decides when members are lost, fail or succeed, rule by rule."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import MemberState, SpecValue, first_failure
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.failures import describe_failure
from elasticjob_runtime.membership.planner import next_plan
from elasticjob_runtime.membership.view import WorkersState

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    describe,
    make_failure,
    make_plan,
    make_view,
    members,
    runs,
    suspicion,
)

PLAN = make_plan("abc")
TWO = make_plan("ab")
USED_UP = make_plan("abc", restarts=3)
LEAVING = {"state": MemberState.LEAVING}
DONE = {"state": MemberState.SUCCEEDED, "round": 1}


REPAIR = {
    "all is well: do nothing": Case(make_view(plan=PLAN), "nothing"),
    "a lost member: probe the others first": Case(make_view(there="abd", plan=PLAN), "probe b"),
    "a lost member costs no restart": Case(
        make_view(there="ab", plan=USED_UP, probes=answers("b")), "plan 2: a b, MemberLost, 3 restarts"
    ),
    "a lost member and a failure: the loss was the cause and costs no restart": Case(
        make_view(there="ab", plan=USED_UP, probes=answers("b"), failures=[make_failure("b")]),
        "plan 2: a b, MemberLost, 3 restarts",
    ),
    "a failure: probe all members": Case(make_view(plan=PLAN, failures=[make_failure("b")]), "probe b c"),
    "a failure: earlier responses do not count": Case(
        make_view(
            plan=PLAN, failures=[make_failure("b")], probes=answers("bc", ago=0.9), store={"failed_at": NOW - 0.5}
        ),
        "probe b c",
    ),
    "a failure with all members there costs a restart": Case(
        make_view(plan=PLAN, failures=[make_failure("b")], probes=answers("bc")),
        "plan 2: a b c, WorkerFailed, 1 restarts",
    ),
    "a failure, and a member does not respond: a lost member": Case(
        make_view(plan=PLAN, failures=[make_failure("b")], probes={**answers("b"), **answers("c", reachable=False)}),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
    "a failure beyond the budget ends the job and names the first failing rank": Case(
        make_view(
            plan=USED_UP,
            failures=[make_failure("c", time=8.0), make_failure("b", time=7.0), make_failure("a", time=9.0)],
            probes=answers("bc"),
        ),
        "outcome failed because of b",
    ),
    "a failure beyond the budget: wait for earlier failures of others": Case(
        make_view(plan=USED_UP, failures=[make_failure("b")], probes=answers("bc"), store={"failed_at": NOW - 0.25}),
        "wait 0.75 s",
    ),
    "the operator's budget takes precedence over the flag": Case(
        make_view(
            plan=PLAN,
            spec=SpecValue(min=2, max=3, max_restarts=0),
            failures=[make_failure("b")],
            probes=answers("bc"),
        ),
        "outcome failed because of b",
    ),
    "a leaving member: the others continue at once, without probes": Case(
        make_view(there=members("abc", c=LEAVING), plan=USED_UP), "plan 2: a b, MemberLeft, 3 restarts"
    ),
    "a leaving leader is replaced": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, me="b"), "plan 2: b c, MemberLeft, 0 restarts"
    ),
    "a draining member counts as leaving": Case(
        make_view(plan=PLAN, spec=SpecValue(min=2, max=3, draining=["b"])), "plan 2: a c, MemberLeft, 0 restarts"
    ),
    "a spare is promoted": Case(
        make_view(there="abd", plan=PLAN, probes=answers("b")), "plan 2: a b d, MemberLost, 0 restarts"
    ),
    "a spare that does not respond is not promoted": Case(
        make_view(there="abd", plan=PLAN, probes={**answers("b"), **answers("d", reachable=False)}),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
    "a new agent under an old name is a joiner": Case(
        make_view(
            there=members("abc", a={"incarnation": "a2", "create": 200}),
            plan=PLAN,
            me="b",
            probes={**answers("c"), **answers("a", incarnation="2")},
        ),
        "plan 2: b c a, MemberLost, 0 restarts",
    ),
    "a response of an earlier incarnation does not count": Case(
        make_view(
            there=members("abc", b={"incarnation": "b2", "create": 200}),
            plan=PLAN,
            probes={**answers("c"), **answers("b", reachable=False)},
        ),
        "probe b",
    ),
    "a member that registered again with the same incarnation was not lost": Case(
        make_view(there=members("abc", b={"create": 200}), plan=PLAN), "nothing"
    ),
    "survivors keep their rank order": Case(
        make_view(
            there=members("bca", c={"create": 1}),
            plan=make_plan("bdca", me="a"),
            probes=answers("bc"),
            spec=SpecValue(min=2, max=4),
        ),
        "plan 2: b c a, MemberLost, 0 restarts",
    ),
    "too few are left: wait, and keep running": Case(make_view(there="a", plan=PLAN), "wait"),
    "too few are left, but one is only silent: probe it again": Case(
        make_view(there="ab", plan=TWO, probes=answers("b", ago=3.0, reachable=False)), "probe b"
    ),
    "allowed sizes: five of eight members train as four": Case(
        make_view(
            there="abcde",
            plan=make_plan("abcdefgh"),
            spec=SpecValue(min=2, max=8, allowed=[2, 4, 8]),
            probes=answers("bcde"),
        ),
        "plan 2: a b c d, MemberLost, 0 restarts",
    ),
    "a plan that lost some ranks is replaced": Case(
        make_view(plan=make_plan("ab", size=3, ranks=make_plan("ab").ranks), probes=answers("b")),
        "plan 2: a b c, MemberLost, 0 restarts",
    ),
    "the store lost its members a moment ago: wait until they register again": Case(
        make_view(there=members("a", a={"round": 1, "seen_at": NOW - 2}), plan=PLAN), "wait 3 s"
    ),
    "the store lost its members, and they do not register again: plan without them": Case(
        make_view(there=members("ab", a={"round": 1, "seen_at": NOW - 6}), plan=PLAN, probes=answers("b")),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
    "the store lost its members, and all registered again: do nothing": Case(
        make_view(there=members("abc", a={"round": 1, "seen_at": NOW - 1}), plan=PLAN), "nothing"
    ),
    "the store was restored from a backup: the restart count is kept": Case(
        make_view(
            there=members("abc", b={"round": 7}), plan=PLAN, workers=runs(make_plan("abc", round_number=7, restarts=2))
        ),
        "plan 8: a b c, Start, 2 restarts",
    ),
    "the store was restored from a backup: rounds continue after the latest known": Case(
        make_view(there=members("abc", b={"round": 7}), plan=PLAN), "plan 8: a b c, Start, 0 restarts"
    ),
    "a member that responded is not probed again without a reason": Case(
        make_view(plan=PLAN, probes=answers("bc", ago=60.0)), "nothing"
    ),
    "two silent members: the next probe is due for the one probed first": Case(
        make_view(
            there="abcd",
            plan=TWO,
            probes={**answers("c", ago=0.75, reachable=False), **answers("d", ago=0.25, reachable=False)},
        ),
        "wait 0.25 s",
    ),
    "a suspected member is probed by the planner": Case(
        make_view(plan=PLAN, store={"suspicions": (suspicion("c", "b"),)}), "probe c"
    ),
    "a member that answered before it was suspected is probed again": Case(
        make_view(plan=PLAN, store={"suspicions": (suspicion("c", "b", ago=0.1),)}, probes=answers("bc", ago=0.6)),
        "probe c",
    ),
    "a suspected member that responds to the planner is not evicted": Case(
        make_view(plan=PLAN, store={"suspicions": (suspicion("c", "b", ago=0.5),)}, probes=answers("c", ago=0.4)),
        "wait 0.6 s",
    ),
    "a suspected member that does not respond is lost": Case(
        make_view(
            plan=PLAN,
            store={"suspicions": (suspicion("c", "b"),)},
            probes={**answers("b"), **answers("c", reachable=False)},
        ),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
}


SUCCESS = {
    "all members have succeeded: the job succeeds": Case(
        make_view(there=members("abc", a=DONE, b=DONE, c=DONE), plan=PLAN), "outcome succeeded"
    ),
    "a member still trains: wait": Case(make_view(there=members("abc", a=DONE, b=DONE), plan=PLAN), "nothing"),
    "a success of an earlier plan does not count": Case(
        make_view(there=members("ab", a=DONE, b={**DONE, "round": 0}), plan=TWO), "nothing"
    ),
    "no member joins once some have succeeded": Case(make_view(there=members("abc", a=DONE), plan=TWO), "nothing"),
    "a member lost after others succeeded: they train again from the last checkpoint": Case(
        make_view(there=members("ab", a=DONE, b=DONE), plan=PLAN, probes=answers("b")),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
}


@pytest.mark.parametrize("name", REPAIR)
def test_the_planner_replaces_a_plan_that_lost_members(name: str) -> None:
    assert describe(next_plan(REPAIR[name].view, NOW)) == REPAIR[name].does


@pytest.mark.parametrize("name", SUCCESS)
def test_the_job_succeeds_once_all_members_have(name: str) -> None:
    assert describe(next_plan(SUCCESS[name].view, NOW)) == SUCCESS[name].does


def test_a_failed_outcome_names_the_first_failing_rank_and_the_budget() -> None:
    failure = make_failure("b", rank=1, message="loss is nan")
    action = next_plan(make_view(plan=USED_UP, failures=[failure], probes=answers("bc")), NOW)
    assert action is not None
    assert action.reason == "rank 1 on b failed: loss is nan; 3 of 3 restarts used"
    outcome = action.outcome  # type: ignore[attr-defined]
    assert outcome.failure == dataclasses.asdict(failure)


def test_a_failure_in_a_replica_names_the_rank_as_its_script_knows_it() -> None:
    failure = dataclasses.replace(make_failure("b", rank=1, message="loss is nan"), replica_world=2)
    assert describe_failure(failure) == "rank 1 of the replica on b failed: loss is nan"


def test_a_plan_replaces_only_the_revision_it_was_made_from() -> None:
    action = next_plan(make_view(there=members("abc", c=LEAVING), plan=PLAN), NOW)
    assert action is not None
    assert action.expected_mod_revision == PLAN.mod_revision  # type: ignore[attr-defined]


def test_the_first_failure_is_the_earliest_by_time() -> None:
    assert first_failure([make_failure("a", time=5.0), make_failure("b", time=4.0)]).member == "b"


def test_the_state_of_the_planners_own_worker_processes_does_not_matter() -> None:
    view = make_view(plan=PLAN, workers=runs(PLAN, WorkersState.STOPPING))
    assert next_plan(view, NOW) is None


@pytest.mark.parametrize("ago", [0.5, 2.0], ids=["probed", "to be probed"])
def test_a_lost_member_outside_the_plan_does_not_change_the_reason(ago: float) -> None:
    """It is probed while its lease lives, because it may return, but the plan does not wait for it."""
    view = make_view(plan=make_plan("ab", round_number=2), probes=answers("c", reachable=False, ago=ago))
    action = decide(view, NOW)
    assert action.reason == "training: plan 2, group rank 0 of 2"
    assert action.until is not None or describe(action) == "probe c"


def test_the_reason_of_a_job_below_its_minimum_does_not_change_with_probes() -> None:
    reasons = {
        decide(make_view(there="ab", plan=make_plan("ab"), probes=answers("b", reachable=False, ago=ago)), NOW).reason
        for ago in (0.5, 2.0)
    }
    assert len(reasons) == 1, reasons
    assert "at least 2 needed" in reasons.pop()
