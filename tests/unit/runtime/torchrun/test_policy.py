"""What a member under torchrun does, decision by decision."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest
from elasticjob_runtime.contract import (
    ExitCode,
    FailureValue,
    MemberState,
    MemberValue,
    OutcomeState,
    OutcomeValue,
    PlanReason,
    PlanValue,
    RankValue,
    SuspicionValue,
)
from elasticjob_runtime.membership.actions import (
    Exit,
    PublishFailure,
    PublishOutcome,
    PublishState,
    StartWorkers,
    StopWorkers,
    Wait,
)
from elasticjob_runtime.membership.view import (
    Member,
    MemberSettings,
    Plan,
    Role,
    StoreView,
    Suspicion,
    View,
    WorkersState,
)
from elasticjob_runtime.torchrun.policy import STOP_TIMEOUT, Phase, TorchAgent, closes, is_spare, next_action

NOW = 1000.0
FAILED = OutcomeValue(state=OutcomeState.FAILED, reason="MaxRestartsExceeded", message="rank 0 on a failed")
STOPPED = FailureValue(
    member="a", round=1, rank=0, local_rank=0, exit_code=1, reason="WorkersStopped", message="stopped"
)


def member(
    name: str, *, state: MemberState = MemberState.READY, nproc: int = 0, round_number: int = 0, revision: int = 0
) -> Member:
    value = MemberValue(
        address="127.0.0.1", ports=[1], nproc=nproc, incarnation=f"{name}1", state=state, round=round_number
    )
    return Member(name=name, create_revision=revision or ord(name), value=value)


def plan(round_number: int, *names: str, me: str = "a", nproc: int = 0, reason: PlanReason = PlanReason.START) -> Plan:
    value = PlanValue(
        round=round_number,
        attempt=f"{round_number}.x",
        size=len(names),
        world_size=0,
        master_addr="127.0.0.1",
        master_port=1,
        leader=names[0],
        nproc=nproc,
        restart_count=0,
        reason=reason,
    )
    ranks = {
        name: RankValue(group_rank=rank, incarnation=f"{name}1", predecessor=names[rank - 1] if rank else "")
        for rank, name in enumerate(names)
    }
    return Plan(value=value, mod_revision=round_number, rank=ranks.get(me), ranks=ranks)


def agent(
    phase: Phase, given: Plan | None = None, *, since: float = NOW, failure: FailureValue | None = None
) -> TorchAgent:
    return TorchAgent(phase=phase, plan=given, changed_at=since, failure=failure)


def view(torch: TorchAgent, *members: Member, **store: Any) -> View:
    """As member `a` sees it, which plans."""
    known = StoreView(
        **{"registered": True, "role": Role.PLANNER, "members": {one.name: one for one in members}, **store}
    )
    settings = MemberSettings(me="a", incarnation="a1", nproc=0, min=1, max=2, max_restarts=9)
    return View(settings=settings, store=known, workers=torch.workers)


def act(torch: TorchAgent, seen: View, *, verdict: OutcomeValue | None = None, now: float = NOW) -> Any:
    return next_action(seen, torch, verdict, now)


A, B = member("a"), member("b")


class TestTorchAgent:
    """The phases, and what moves torch's agent from one to the next."""

    @pytest.mark.parametrize(
        ("before", "step", "after"),
        [
            (Phase.WAITING, "on_rejoin", Phase.WAITING),
            (Phase.MEETING, "on_rejoin", Phase.MEETING),
            (Phase.RUNNING, "on_rejoin", Phase.WAITING),
            (Phase.STOPPING, "on_rejoin", Phase.WAITING),
            (Phase.WAITING, "start", Phase.MEETING),
            (Phase.RUNNING, "start", Phase.RUNNING),
            (Phase.FINISHED, "start", Phase.FINISHED),
            (Phase.MEETING, "stop", Phase.WAITING),
            (Phase.RUNNING, "stop", Phase.STOPPING),
            (Phase.FINISHED, "stop", Phase.FINISHED),
            (Phase.MEETING, "run", Phase.RUNNING),
            (Phase.WAITING, "run", Phase.WAITING),
            (Phase.STOPPING, "run", Phase.STOPPING),
            (Phase.RUNNING, "finish", Phase.FINISHED),
            (Phase.STOPPING, "finish", Phase.FINISHED),
            (Phase.WAITING, "finish", Phase.WAITING),
        ],
    )
    def test_steps(self, before: Phase, step: str, after: Phase) -> None:
        torch = agent(before, plan(1, "a"))
        steps = {
            "on_rejoin": lambda: torch.on_rejoin(STOPPED, NOW),
            "start": lambda: torch.start(plan(2, "a"), NOW),
            "stop": lambda: torch.stop(STOPPED, NOW),
            "run": lambda: torch.run(1, NOW),
            "finish": lambda: torch.finish(NOW),
        }
        assert steps[step]().phase is after

    def test_a_round_that_is_over_does_not_run(self) -> None:
        torch = agent(Phase.MEETING, plan(2, "a"))
        assert torch.run(1, NOW).phase is Phase.MEETING
        assert torch.is_in(2)
        assert not torch.is_in(1)
        assert not torch.stop(STOPPED, NOW).is_in(2)

    def test_a_new_plan_forgets_the_failure(self) -> None:
        torch = agent(Phase.RUNNING, plan(1, "a")).on_rejoin(STOPPED, NOW)
        assert torch.workers.state is WorkersState.FAILED
        assert torch.workers.failure is STOPPED
        assert torch.start(plan(2, "a"), NOW).workers.failure is None


def test_it_follows_a_plan() -> None:
    torch = agent(Phase.WAITING)
    assert isinstance(act(torch, view(torch, A, B, plan=plan(1, "a", "b"))), StartWorkers)


def test_a_newer_plan_stops_it() -> None:
    torch = agent(Phase.RUNNING, plan(1, "a", "b"))
    assert isinstance(act(torch, view(torch, A, plan=plan(2, "a"))), StopWorkers)


def test_workers_that_failed_are_told_of() -> None:
    torch = agent(Phase.RUNNING, plan(1, "a", "b")).on_rejoin(STOPPED, NOW)
    assert isinstance(act(torch, view(torch, A, B, plan=plan(1, "a", "b"))), PublishFailure)


def test_workers_that_were_to_stop_are_no_failure() -> None:
    torch = agent(Phase.STOPPING, plan(1, "a", "b")).on_rejoin(STOPPED, NOW)
    assert isinstance(act(torch, view(torch, A, plan=plan(2, "a"))), StartWorkers)


def test_all_done_is_success() -> None:
    torch = agent(Phase.FINISHED, plan(1, "a", "b"))
    done = [member(name, state=MemberState.SUCCEEDED, round_number=1) for name in "ab"]
    action = act(torch, view(torch, *done, plan=plan(1, "a", "b")))
    assert isinstance(action, PublishOutcome)
    assert action.outcome.state is OutcomeState.SUCCEEDED
    assert action.outcome.message == "the workers of all 2 members exited with 0"


class TestLaunchers:
    def test_a_living_member_of_elasticrun_is_refused(self) -> None:
        torch = agent(Phase.WAITING)
        action = act(torch, view(torch, A, member("b", nproc=2), plan=plan(1, "b", nproc=2)))
        assert isinstance(action, Exit)
        assert action.code is ExitCode.CONFIG
        assert "elasticrun" in action.reason

    def test_the_first_member_of_elasticrun_is_refused_before_there_is_a_plan(self) -> None:
        torch = agent(Phase.WAITING)
        action = act(
            torch, view(torch, A, role=Role.FOLLOWER, predecessor="b", first_member=member("b", nproc=2).value)
        )
        assert isinstance(action, Exit)

    def test_a_plan_that_elasticrun_left_behind_binds_nobody(self) -> None:
        torch = agent(Phase.WAITING)
        action = act(torch, view(torch, A, plan=plan(4, "b", nproc=2)))
        assert action.round == 5
        assert action.members == (A,)

    def test_who_trains_already_is_not_driven_out(self) -> None:
        torch = agent(Phase.RUNNING, plan(1, "a"))
        assert isinstance(act(torch, view(torch, A, member("b", nproc=2), plan=plan(1, "a"))), Wait)


class TestTimeToComeBack:
    """Workers that do not stop must not keep the others waiting."""

    seen: ClassVar[dict[str, Any]] = {"plan": plan(2, "b", "a"), "role": Role.FOLLOWER, "predecessor": "b"}

    @pytest.mark.parametrize(("waited", "leaves"), [(0.0, False), (STOP_TIMEOUT - 1, False), (STOP_TIMEOUT, True)])
    def test_late(self, waited: float, leaves: bool) -> None:
        torch = agent(Phase.STOPPING, plan(1, "a", "b"), since=NOW - waited)
        action = act(torch, view(torch, A, B, **self.seen))
        assert isinstance(action, PublishState) is leaves
        if leaves:
            assert action.state is MemberState.LEAVING
        else:
            assert action.until == torch.changed_at + STOP_TIMEOUT, "looks again in time"

    def test_back_at_last(self) -> None:
        torch = agent(Phase.STOPPING, plan(1, "a", "b")).on_rejoin(STOPPED, NOW)
        action = act(torch, view(torch, member("a", state=MemberState.LEAVING), B, **self.seen))
        assert isinstance(action, PublishState)
        assert action.state is MemberState.READY

    def test_a_signal_is_for_good(self) -> None:
        torch = agent(Phase.WAITING, plan(1, "a", "b"))
        leaving = dataclasses.replace(
            view(torch, member("a", state=MemberState.LEAVING), B, **self.seen), leaving_since=NOW
        )
        assert isinstance(act(torch, leaving), Exit)


class TestDone:
    """Its workers are done; torch's agent cannot start any again."""

    torch = agent(Phase.FINISHED, plan(1, "a", "b"))
    me = member("a", state=MemberState.SUCCEEDED, round_number=1)

    @pytest.mark.parametrize(
        ("members", "store", "leaves"),
        [
            ([B], {"plan": plan(1, "a", "b")}, False),
            ([B], {"plan": plan(2, "a", "b")}, True),
            ([B], {"plan": plan(2, "b")}, True),
            ([], {"plan": plan(1, "a", "b")}, True),
            ([member("b", state=MemberState.LEAVING)], {"plan": plan(1, "a", "b")}, True),
            ([B], {"plan": plan(1, "a", "b"), "failures": (STOPPED,)}, True),
            ([], {"plan": plan(1, "a", "b"), "role": Role.FOLLOWER}, False),
        ],
        ids=["all is well", "planned again", "planned without", "lost", "left", "failed", "not for a follower to see"],
    )
    def test_it_leaves_the_others_to_it(self, members: list[Member], store: dict[str, Any], leaves: bool) -> None:
        action = act(self.torch, view(self.torch, self.me, *members, **store))
        assert (isinstance(action, PublishState) and action.state is MemberState.LEAVING) is leaves

    def test_then_it_ends_well(self) -> None:
        action = act(self.torch, view(self.torch, member("a", state=MemberState.LEAVING), B, plan=plan(2, "a", "b")))
        assert isinstance(action, Exit)
        assert action.code is ExitCode.SUCCEEDED


class TestFailure:
    """torch's agent has no restarts left: is that the job's end?"""

    torch = agent(Phase.WAITING, plan(1, "a", "b"), failure=STOPPED)
    suspicion = Suspicion(value=SuspicionValue(suspect="b", by="c", round=1), seen_at=NOW)

    @pytest.mark.parametrize(
        ("store", "closed"),
        [
            ({"plan": plan(1, "a", "b")}, True),
            ({"plan": plan(2, "a", "b", reason=PlanReason.WORKER_FAILED)}, True),
            ({"plan": plan(2, "a", reason=PlanReason.MEMBER_LOST)}, False),
            ({"plan": plan(2, "a", reason=PlanReason.MEMBER_LEFT)}, False),
            ({"plan": plan(2, "b", reason=PlanReason.WORKER_FAILED)}, False),
            ({"plan": plan(1, "a", "b"), "suspicions": (suspicion,)}, False),
            ({}, False),
        ],
        ids=[
            "its own",
            "others failed too",
            "one was lost",
            "one left",
            "they went on without",
            "one fell silent",
            "no plan",
        ],
    )
    def test_whose(self, store: dict[str, Any], closed: bool) -> None:
        seen = view(self.torch, A, B, **store)
        assert closes(seen) is closed
        action = act(self.torch, seen, verdict=FAILED)
        if closed:
            assert isinstance(action, PublishOutcome)
            assert action.outcome.round == action.expected_mod_revision == store["plan"].round
        else:
            assert isinstance(action, Exit)

    def test_it_is_said_once(self) -> None:
        action = act(self.torch, view(self.torch, A, B, plan=plan(1, "a", "b"), outcome=FAILED), verdict=FAILED)
        assert isinstance(action, Exit)
        assert action.code is ExitCode.WORKERS_FAILED


@pytest.mark.parametrize(("given", "spare"), [(None, False), (plan(1, "a"), False), (plan(1, "b"), True)])
def test_spares(given: Plan | None, spare: bool) -> None:
    torch = agent(Phase.WAITING)
    assert is_spare(view(torch, A, plan=given)) is spare
