"""Builders of what a member under torchrun sees."""

from __future__ import annotations

from typing import Any

from elasticjob_runtime.contract import (
    FailureValue,
    MemberState,
    MemberValue,
    OutcomeState,
    OutcomeValue,
    PlanReason,
    PlanValue,
    RankValue,
)
from elasticjob_runtime.membership.view import Member, MemberSettings, Plan, Role, StoreView, View
from elasticjob_runtime.torchrun.policy import AgentPhase, TorchAgent, next_action

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
        round=round_number, attempt=f"{round_number}.x", size=len(names), world_size=0, master_addr="127.0.0.1",
        master_port=1, leader=names[0], nproc=nproc, restart_count=0, reason=reason,
    )  # fmt: skip
    ranks = {
        name: RankValue(group_rank=rank, incarnation=f"{name}1", predecessor=names[rank - 1] if rank else "")
        for rank, name in enumerate(names)
    }
    return Plan(value=value, mod_revision=round_number, rank=ranks.get(me), ranks=ranks)


def agent(
    phase: AgentPhase, given: Plan | None = None, *, since: float = NOW, failure: FailureValue | None = None
) -> TorchAgent:
    return TorchAgent(phase=phase, plan=given, changed_at=since, failure=failure)


def view(torch: TorchAgent, *members: Member, **store: Any) -> View:
    """The view of member `a`, the planner."""
    known = StoreView(
        **{"registered": True, "role": Role.PLANNER, "members": {one.name: one for one in members}, **store}
    )
    settings = MemberSettings(me="a", incarnation="a1", nproc=0, min=1, max=2, max_restarts=9)
    return View(settings=settings, store=known, workers=torch.workers)


def act(torch: TorchAgent, seen: View, *, outcome: OutcomeValue | None = None, now: float = NOW) -> Any:
    return next_action(seen, torch, outcome, now)


A = member("a")
B = member("b")
