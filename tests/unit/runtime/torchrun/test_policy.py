"""What a member under torchrun does, decision by decision."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest
from elasticjob_runtime.contract import ExitCode, MemberState, OutcomeState, PlanReason, SuspicionValue
from elasticjob_runtime.membership.actions import (
    Exit,
    PublishFailure,
    PublishOutcome,
    PublishState,
    StartWorkers,
    StopWorkers,
    Wait,
)
from elasticjob_runtime.membership.view import Member, Plan, Role, Suspicion
from elasticjob_runtime.torchrun.policy import STOP_TIMEOUT, AgentPhase, TorchAgent, closes, is_spare

from tests.unit.runtime.torchrun.builders import FAILED, NOW, STOPPED, A, B, act, agent, member, plan, view

ONE = plan(1, "a", "b")
BASICS = {
    "a plan starts the worker processes": (agent(AgentPhase.WAITING), ONE, StartWorkers),
    "a newer plan stops them": (agent(AgentPhase.RUNNING, ONE), plan(2, "a"), StopWorkers),
    "their failure is published": (agent(AgentPhase.RUNNING, ONE).on_rejoin(STOPPED, NOW), ONE, PublishFailure),
    "none if they were asked to stop": (
        agent(AgentPhase.STOPPING, ONE).on_rejoin(STOPPED, NOW), plan(2, "a"), StartWorkers,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("torch", "current", "kind"), BASICS.values(), ids=BASICS)
def test_worker_processes_follow_the_plan(torch: TorchAgent, current: Plan, kind: type) -> None:
    assert isinstance(act(torch, view(torch, A, B, plan=current)), kind)


def test_the_job_succeeds_once_all_members_have_succeeded() -> None:
    torch = agent(AgentPhase.FINISHED, ONE)
    done = [member(name, state=MemberState.SUCCEEDED, round_number=1) for name in "ab"]
    action = act(torch, view(torch, *done, plan=ONE))
    assert isinstance(action, PublishOutcome)
    assert action.outcome.state is OutcomeState.SUCCEEDED
    assert action.outcome.message == "the workers of all 2 members exited with 0"


class TestLaunchers:
    def test_a_member_rejects_a_group_started_by_elasticrun(self) -> None:
        torch = agent(AgentPhase.WAITING)
        action = act(torch, view(torch, A, member("b", nproc=2), plan=plan(1, "b", nproc=2)))
        assert isinstance(action, Exit)
        assert action.code is ExitCode.CONFIG
        assert "elasticrun" in action.reason

    def test_a_member_rejects_a_first_member_started_by_elasticrun(self) -> None:
        torch = agent(AgentPhase.WAITING)
        action = act(
            torch, view(torch, A, role=Role.FOLLOWER, predecessor="b", first_member=member("b", nproc=2).value)
        )
        assert isinstance(action, Exit)

    def test_an_old_plan_of_elasticrun_without_members_is_replaced(self) -> None:
        torch = agent(AgentPhase.WAITING)
        action = act(torch, view(torch, A, plan=plan(4, "b", nproc=2)))
        assert action.round == 5
        assert action.members == (A,)

    def test_a_joining_elasticrun_member_does_not_stop_a_running_group(self) -> None:
        torch = agent(AgentPhase.RUNNING, plan(1, "a"))
        assert isinstance(act(torch, view(torch, A, member("b", nproc=2), plan=plan(1, "a"))), Wait)


class TestStopTimeout:
    """Worker processes that do not stop must not keep the others waiting."""

    seen: ClassVar[dict[str, Any]] = {"plan": plan(2, "b", "a"), "role": Role.FOLLOWER, "predecessor": "b"}

    @pytest.mark.parametrize(("waited", "leaves"), [(0.0, False), (STOP_TIMEOUT - 1, False), (STOP_TIMEOUT, True)])
    def test_a_member_whose_workers_do_not_stop_in_time_leaves(self, waited: float, leaves: bool) -> None:
        torch = agent(AgentPhase.STOPPING, ONE, since=NOW - waited)
        action = act(torch, view(torch, A, B, **self.seen))
        assert isinstance(action, PublishState) is leaves
        if leaves:
            assert action.state is MemberState.LEAVING
        else:
            assert action.until == torch.changed_at + STOP_TIMEOUT, "decides again in time"

    def test_a_member_whose_workers_stopped_late_joins_again(self) -> None:
        torch = agent(AgentPhase.STOPPING, ONE).on_rejoin(STOPPED, NOW)
        action = act(torch, view(torch, member("a", state=MemberState.LEAVING), B, **self.seen))
        assert isinstance(action, PublishState)
        assert action.state is MemberState.READY

    def test_a_member_that_leaves_on_a_signal_does_not_join_again(self) -> None:
        torch = agent(AgentPhase.WAITING, ONE)
        leaving = dataclasses.replace(
            view(torch, member("a", state=MemberState.LEAVING), B, **self.seen), leaving_since=NOW
        )
        assert isinstance(act(torch, leaving), Exit)


class TestDone:
    """Its worker processes have succeeded; torch's agent cannot start them again."""

    torch = agent(AgentPhase.FINISHED, ONE)
    me = member("a", state=MemberState.SUCCEEDED, round_number=1)

    cases: ClassVar[dict[str, Any]] = {
        "all is well": ([B], {"plan": ONE}, False),
        "planned again": ([B], {"plan": plan(2, "a", "b")}, True),
        "planned without it": ([B], {"plan": plan(2, "b")}, True),
        "a member was lost": ([], {"plan": ONE}, True),
        "a member left": ([member("b", state=MemberState.LEAVING)], {"plan": ONE}, True),
        "a failure": ([B], {"plan": ONE, "failures": (STOPPED,)}, True),
        "left to the planner": ([], {"plan": ONE, "role": Role.FOLLOWER}, False),
    }

    @pytest.mark.parametrize(("members", "store", "leaves"), cases.values(), ids=cases)
    def test_a_finished_member_leaves_once_the_group_has_to_train_again(
        self, members: list[Member], store: dict[str, Any], leaves: bool
    ) -> None:
        action = act(self.torch, view(self.torch, self.me, *members, **store))
        assert (isinstance(action, PublishState) and action.state is MemberState.LEAVING) is leaves

    def test_a_finished_member_that_left_exits_successfully(self) -> None:
        action = act(self.torch, view(self.torch, member("a", state=MemberState.LEAVING), B, plan=plan(2, "a", "b")))
        assert isinstance(action, Exit)
        assert action.code is ExitCode.SUCCEEDED


class TestFailure:
    """torch's agent has no restarts left: whether that ends the job."""

    torch = agent(AgentPhase.WAITING, ONE, failure=STOPPED)
    suspicion = Suspicion(value=SuspicionValue(suspect="b", by="c", round=1), seen_at=NOW)

    cases: ClassVar[dict[str, Any]] = {
        "its own failure": ({"plan": ONE}, True),
        "others failed too": ({"plan": plan(2, "a", "b", reason=PlanReason.WORKER_FAILED)}, True),
        "a member was lost": ({"plan": plan(2, "a", reason=PlanReason.MEMBER_LOST)}, False),
        "a member left": ({"plan": plan(2, "a", reason=PlanReason.MEMBER_LEFT)}, False),
        "the others continued without it": ({"plan": plan(2, "b", reason=PlanReason.WORKER_FAILED)}, False),
        "a member is silent": ({"plan": ONE, "suspicions": (suspicion,)}, False),
        "no plan": ({}, False),
    }

    @pytest.mark.parametrize(("store", "closed"), cases.values(), ids=cases)
    def test_exhausted_restarts_end_the_job_only_for_a_failure_of_its_own_group(
        self, store: dict[str, Any], closed: bool
    ) -> None:
        seen = view(self.torch, A, B, **store)
        assert closes(seen) is closed
        action = act(self.torch, seen, outcome=FAILED)
        if closed:
            assert isinstance(action, PublishOutcome)
            assert action.outcome.round == action.expected_mod_revision == store["plan"].round
        else:
            assert isinstance(action, Exit)

    def test_the_outcome_is_published_once(self) -> None:
        action = act(self.torch, view(self.torch, A, B, plan=ONE, outcome=FAILED), outcome=FAILED)
        assert isinstance(action, Exit)
        assert action.code is ExitCode.WORKERS_FAILED


@pytest.mark.parametrize(
    ("given", "spare"),
    [(None, False), (plan(1, "a"), False), (plan(1, "b"), True)],
    ids=["no plan", "in the plan", "not in the plan"],
)
def test_a_member_outside_the_plan_is_a_spare(given: Plan | None, spare: bool) -> None:
    torch = agent(AgentPhase.WAITING)
    assert is_spare(view(torch, A, plan=given)) is spare
