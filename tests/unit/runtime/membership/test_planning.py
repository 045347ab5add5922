"""What the planner decides when members are lost, fail or succeed, rule by rule."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import MemberState, SpecValue
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.failures import describe_failure
from elasticjob_runtime.membership.planner import next_plan
from elasticjob_runtime.membership.view import WorkersState

from tests.unit.runtime.membership.builders import (
    NOW,
    answers,
    case,
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
    "all is well: do nothing": case("nothing", plan=PLAN),
    "whatever the planner's own worker processes do":
        case("nothing", plan=PLAN, workers=runs(PLAN, WorkersState.STOPPING)),
    "a lost member: probe the others first": case("probe b", there="abd", plan=PLAN),
    "a lost member costs no restart":
        case("plan 2: a b, MemberLost, 3 restarts", there="ab", plan=USED_UP, probes=answers("b")),
    "a lost member and a failure: the loss was the cause and costs no restart":
        case("plan 2: a b, MemberLost, 3 restarts", there="ab", plan=USED_UP, probes=answers("b"),
            failures=[make_failure("b")]),
    "a failure: probe all members": case("probe b c", plan=PLAN, failures=[make_failure("b")]),
    "a failure: earlier responses do not count":
        case("probe b c", plan=PLAN, failures=[make_failure("b")], probes=answers("bc", ago=0.9), failed_at=NOW - 0.5),
    "a failure with all members there costs a restart":
        case("plan 2: a b c, WorkerFailed, 1 restarts", plan=PLAN, failures=[make_failure("b")], probes=answers("bc")),
    "a failure, and a member does not respond: a lost member":
        case("plan 2: a b, MemberLost, 0 restarts", plan=PLAN, failures=[make_failure("b")],
            probes={**answers("b"), **answers(silent="c")}),
    "a failure beyond the budget ends the job and names the first failing rank":
        case("outcome failed because of b", plan=USED_UP,
            failures=[make_failure("c", time=8.0), make_failure("b", time=7.0), make_failure("a", time=9.0)],
            probes=answers("bc")),
    "a failure beyond the budget: wait for earlier failures of others":
        case("wait 0.75 s", plan=USED_UP, failures=[make_failure("b")], probes=answers("bc"), failed_at=NOW - 0.25),
    "the operator's budget takes precedence over the flag":
        case("outcome failed because of b", plan=PLAN, spec=SpecValue(min=2, max=3, max_restarts=0),
            failures=[make_failure("b")], probes=answers("bc")),
    "a leaving member: the others continue at once, without probes":
        case("plan 2: a b, MemberLeft, 3 restarts", there=members("abc", c=LEAVING), plan=USED_UP),
    "a leaving leader is replaced":
        case("plan 2: b c, MemberLeft, 0 restarts", there=members("abc", a=LEAVING), plan=PLAN, me="b"),
    "a draining member counts as leaving":
        case("plan 2: a c, MemberLeft, 0 restarts", plan=PLAN, spec=SpecValue(min=2, max=3, draining=["b"])),
    "a spare is promoted": case("plan 2: a b d, MemberLost, 0 restarts", there="abd", plan=PLAN, probes=answers("b")),
    "a spare that does not respond is not promoted":
        case("plan 2: a b, MemberLost, 0 restarts", there="abd", plan=PLAN,
            probes={**answers("b"), **answers(silent="d")}),
    "a new agent under an old name is a joiner":
        case("plan 2: b c a, MemberLost, 0 restarts", there=members("abc", a={"incarnation": "a2", "create": 200}),
            plan=PLAN, me="b", probes={**answers("c"), **answers("a", incarnation="2")}),
    "a response of an earlier incarnation does not count":
        case("probe b", there=members("abc", b={"incarnation": "b2", "create": 200}), plan=PLAN,
            probes={**answers("c"), **answers(silent="b")}),
    "a member that registered again with the same incarnation was not lost":
        case("nothing", there=members("abc", b={"create": 200}), plan=PLAN),
    "survivors keep their rank order":
        case("plan 2: b c a, MemberLost, 0 restarts", there=members("bca", c={"create": 1}),
            plan=make_plan("bdca", me="a"), probes=answers("bc"), spec=SpecValue(min=2, max=4)),
    "too few are left: wait, and keep running": case("wait", there="a", plan=PLAN),
    "too few are left, but one is only silent: probe it again":
        case("probe b", there="ab", plan=TWO, probes=answers(silent="b", ago=3.0)),
    "allowed sizes: five of eight members train as four":
        case("plan 2: a b c d, MemberLost, 0 restarts", there="abcde", plan=make_plan("abcdefgh"),
            spec=SpecValue(min=2, max=8, allowed=[2, 4, 8]), probes=answers("bcde")),
    "a plan that lost some ranks is replaced":
        case("plan 2: a b c, MemberLost, 0 restarts", plan=make_plan("ab", size=3, ranks=make_plan("ab").ranks),
            probes=answers("b")),
    "the store lost its members a moment ago: wait until they register again":
        case("wait 3 s", there=members("a", a={"round": 1, "seen_at": NOW - 2}), plan=PLAN),
    "the store lost its members, and they do not register again: plan without them":
        case("plan 2: a b, MemberLost, 0 restarts", there=members("ab", a={"round": 1, "seen_at": NOW - 6}), plan=PLAN,
            probes=answers("b")),
    "the store lost its members, and all registered again: do nothing":
        case("nothing", there=members("abc", a={"round": 1, "seen_at": NOW - 1}), plan=PLAN),
    "the store was restored from a backup: the restart count is kept":
        case("plan 8: a b c, Start, 2 restarts", there=members("abc", b={"round": 7}), plan=PLAN,
            workers=runs(make_plan("abc", round_number=7, restarts=2))),
    "the store was restored from a backup: rounds continue after the latest known":
        case("plan 8: a b c, Start, 0 restarts", there=members("abc", b={"round": 7}), plan=PLAN),
    "a member that responded is not probed again without a reason":
        case("nothing", plan=PLAN, probes=answers("bc", ago=60.0)),
    "two silent members: the next probe is due for the one probed first":
        case("wait 0.25 s", there="abcd", plan=TWO,
            probes={**answers(silent="c", ago=0.75), **answers(silent="d", ago=0.25)}),
    "a suspected member is probed by the planner": case("probe c", plan=PLAN, suspicions=(suspicion("c", "b"),)),
    "a member that answered before it was suspected is probed again":
        case("probe c", plan=PLAN, suspicions=(suspicion("c", "b", ago=0.1),), probes=answers("bc", ago=0.6)),
    "a suspected member that responds to the planner is not evicted":
        case("wait 0.6 s", plan=PLAN, suspicions=(suspicion("c", "b", ago=0.5),), probes=answers("c", ago=0.4)),
    "a suspected member that does not respond is lost":
        case("plan 2: a b, MemberLost, 0 restarts", plan=PLAN, suspicions=(suspicion("c", "b"),),
            probes=answers("b", silent="c")),
}  # fmt: skip


SUCCESS = {
    "all members have succeeded: the job succeeds":
        case("outcome succeeded", there=members("abc", a=DONE, b=DONE, c=DONE), plan=PLAN),
    "a member still trains: wait": case("nothing", there=members("abc", a=DONE, b=DONE), plan=PLAN),
    "a success of an earlier plan does not count":
        case("nothing", there=members("ab", a=DONE, b={**DONE, "round": 0}), plan=TWO),
    "no member joins once some have succeeded": case("nothing", there=members("abc", a=DONE), plan=TWO),
    "a member lost after others succeeded: they train again from the last checkpoint":
        case("plan 2: a b, MemberLost, 0 restarts", there=members("ab", a=DONE, b=DONE), plan=PLAN,
            probes=answers("b")),
}  # fmt: skip


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


@pytest.mark.parametrize("ago", [0.5, 2.0], ids=["probed", "to be probed"])
def test_a_lost_member_outside_the_plan_does_not_change_the_reason(ago: float) -> None:
    """It is probed while its lease lives, because it may return, but the plan does not wait for it."""
    view = make_view(plan=make_plan("ab", round_number=2), probes=answers(silent="c", ago=ago))
    action = decide(view, NOW)
    assert action.reason == "training: plan 2, group rank 0 of 2"
    assert action.until is not None or describe(action) == "probe c"


def test_the_reason_of_a_job_below_its_minimum_does_not_change_with_probes() -> None:
    reasons = {
        decide(make_view(there="ab", plan=make_plan("ab"), probes=answers(silent="b", ago=ago)), NOW).reason
        for ago in (0.5, 2.0)
    }
    assert len(reasons) == 1, reasons
    assert "at least 2 needed" in reasons.pop()
