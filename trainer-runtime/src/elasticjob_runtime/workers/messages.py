"""What an agent sends to its worker processes. The messages are described in training/session/agent.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from elasticjob_runtime.contract import Env
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.workers.effects import SendEnd, SendPlan
from elasticjob_runtime.workers.environment import GroupSpec
from elasticjob_runtime.workers.state_machine import START_TIMEOUT

EVALUATION_SHARE = 2 / 3
"""Of `arrive_timeout`: how long a planned change waits for the end of an evaluation, which others would repeat."""

END_GRACE = 0.5
"""s that the last step may take to end before it is interrupted."""


class WorkerMessages(Protocol):
    """A message to a worker that is not connected is dropped. No method blocks."""

    def ask_to_save(self, rank: int, seconds: float) -> None:
        """Asks the worker of `rank` to save; it is killed after `seconds`."""

    def send_to(self, local_rank: int, message: Mapping[str, Any]) -> None:
        """Sends a message to the worker of `local_rank` that can continue under another plan."""


def plan_message(effect: SendPlan, environment: Mapping[str, str] | None, spec: GroupSpec) -> dict[str, Any]:
    """`environment`: the process's in the plan; None: it is not in the plan."""
    plan, step_grace = effect.plan, effect.step_grace
    chosen = None if environment is None else {
        name: environment[name] for name in Env.SET_BY_AGENT if name in environment
    }  # fmt: skip
    return {
        "type": "plan", "in_place": True, "round": plan.round, "attempt": plan.value.attempt, "step_grace": step_grace,
        "environment": chosen, "replicas": None if environment is None else replicas_message(plan),
        "others": plan.value.size // plan.value.replica_size if environment is None and plan.value.replica_size else 0,
        "evaluation_grace": EVALUATION_SHARE * (spec.arrive_timeout or START_TIMEOUT) if step_grace else 0.0,
    }  # fmt: skip


def replicas_message(plan: Plan) -> dict[str, Any] | None:
    """None: without --replica-size."""
    value, rank = plan.value, plan.rank
    if not value.replica_size or rank is None:
        return None
    return {
        "place": rank.group_rank // value.replica_size, "count": value.size // value.replica_size,
        "store": f"{value.master_addr}:{value.master_port}",
    }  # fmt: skip


def end_message(effect: SendEnd) -> dict[str, Any]:
    return {
        "type": "plan", "in_place": True, "round": effect.plan.round, "attempt": effect.plan.value.attempt,
        "step_grace": END_GRACE, "environment": None, "ends": True, "saves": effect.saves,
    }  # fmt: skip
