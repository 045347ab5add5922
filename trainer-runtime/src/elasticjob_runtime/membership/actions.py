"""The actions that `decide` returns.

The agent carries out one action at a time; that changes its view, and it decides again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from elasticjob_runtime.contract import (
    ExitCode,
    FailureValue,
    MemberState,
    OutcomeValue,
    PlanReason,
    ReplicaValue,
    StopValue,
    SuspicionValue,
    UnreadyValue,
)
from elasticjob_runtime.membership import crash_loop
from elasticjob_runtime.membership.silence import RESTART
from elasticjob_runtime.membership.view import Member, Plan, Role, View, WorkersState


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """What to do next. The reason is one short clause for users; it is logged when it changes."""

    reason: str
    until: float | None = None
    """When to decide again even if nothing changes before, monotonic; None: not needed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wait(Action):
    """There is nothing to do for now."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Register(Action):
    """Obtain a lease and write the member key."""

    state: MemberState = MemberState.READY
    round: int = 0
    stores: bool = False
    replica: ReplicaValue | None = None
    """That of worker processes that run; None: none run."""
    plan: Plan | None = None
    """That the last worker processes were started for: etcd may have lost this member's rank in it, too."""
    world_over: int = 0
    """The last world of a replica that has ended here; 0: none."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Subscribe(Action):
    role: Role
    predecessor: str = ""
    """Member to watch. Empty, as a follower: look up the member that registered just before this one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishState(Action):
    """What is None stays as it is."""

    state: MemberState
    round: int
    stores: bool = False
    saves: bool | None = None
    saved: int | None = None
    in_place: int | None = None
    broken: str | None = None
    failed: int | None = None
    """None: `failed_at` and `failure` stay, too."""
    failed_at: float | None = None
    failure: str | None = None
    replica: ReplicaValue | None = None
    world_over: int | None = None
    cut_from: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishFailure(Action):
    failure: FailureValue


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishSuspicion(Action):
    suspicion: SuspicionValue
    retract: bool = False
    """Withdraw it: heartbeats have resumed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishUnready(Action):
    unready: UnreadyValue | None
    """None: all members are ready."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishOutcome(Action):
    outcome: OutcomeValue
    expected_mod_revision: int
    """mod_revision of the plan that ended this way."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProposePlan(Action):
    """Write ranks and head of plan `round`. Fails if a named member is gone or was told another replica, or another
    plan was written first."""

    round: int
    members: tuple[Member, ...]
    """In rank order."""
    replica_size: int = 0
    replicas: Mapping[str, ReplicaValue] = dataclasses.field(default_factory=dict)
    """What members were told of their replicas, as far as the decision knew."""
    joined: tuple[int, ...] = ()
    """Of each, the round since which every plan has included it; empty: this one."""
    restart_count: int
    plan_reason: PlanReason
    message: str
    """The cause, for users."""
    expected_mod_revision: int
    """mod_revision of the previous plan; 0: none."""
    caused_at: float = 0.0
    """When the cause happened, Unix time, seconds; 0: not known."""
    finished: tuple[str, ...] = ()
    """See `PlanValue`."""
    crashes: crash_loop.CrashHistory = dataclasses.field(default_factory=crash_loop.CrashHistory)
    store_generation: int = 0
    """Store generation in the spec; 0: not known."""
    run_began: int = 0
    """Unix time of the run's first plan, seconds; 0: this is the first."""
    in_place: bool = False
    """Worker processes that run continue under it."""
    broken: int = 0
    suspects: tuple[str, ...] = ()
    """This and the next: see `PlanValue`."""
    left_out: str = ""
    reports_steps: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProposeStop(Action):
    """Let the workers of the current plan save before a planned change. Fails if another plan was written first."""

    stop: StopValue
    expected_mod_revision: int
    """mod_revision of the plan whose workers stop."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AssignReplicas(Action):
    """Tell members which replica they belong to. Fails if another plan was written first, or another planner has told
    them."""

    parts: tuple[tuple[tuple[Member, ...], tuple[ReplicaValue, ...]], ...]
    """The members of each replica, and what each of them is told."""
    known: Mapping[str, ReplicaValue]
    """What members were told before, as far as the decision knew."""
    gone: tuple[str, ...]
    """Members that are gone, whose keys are deleted."""
    expected_mod_revision: int
    """mod_revision of the plan; 0: none."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AmendPlan(Action):
    """Write in the current plan that its worker processes continue under the next one. Fails if another plan was
    written first."""

    plan: Plan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RestorePlan(Action):
    """Write the running plan again, because the store came back without it."""

    plan: Plan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProbePeers(Action):
    members: tuple[Member, ...]
    timeout: float = RESTART.answer
    """Seconds to wait for the answers."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProbeOutside(Action):
    """Probe the outside hosts: if one answers, the store is down, and this group is not cut off."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StartWorkers(Action):
    plan: Plan
    alone: bool = False
    """Each in a world of its own, from which it continues in the plan's; also before this member is in a plan."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MoveWorkers(Action):
    """Let the worker processes continue under `plan`, and start those that are missing. If the plan does not include
    this member, they leave their world and wait."""

    plan: Plan
    step_grace: float = 0.0
    """Seconds that a step may take to end before it is interrupted; 0: it cannot end."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StopWorkers(Action):
    grace: float = 0.0
    """Seconds between SIGTERM and SIGKILL; 0: SIGKILL at once, even if an earlier grace period has not ended. (Their
    state is lost anyway, or saved in the last checkpoint.)"""
    last: bool = False
    """All members of a plan that continues in place leave: what none of their worker processes saves is lost."""
    saves: bool = False
    """Those of this member save for all."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Exit(Action):
    code: ExitCode


StoreAction = (
    Register
    | Subscribe
    | PublishState
    | PublishFailure
    | PublishSuspicion
    | PublishUnready
    | PublishOutcome
    | ProposeStop
    | ProposePlan
    | AssignReplicas
    | AmendPlan
    | RestorePlan
)
"""Actions on the store: one at a time, retried with backoff while it is unreachable."""


def stop_at_once(view: View, reason: str) -> Action:
    """Kills the workers, or waits until they have exited. Ends a grace period for saving."""
    if view.workers.state is WorkersState.STOPPING and not view.workers.saving:
        return Wait(reason=f"stopping the worker processes: {reason}")
    return StopWorkers(reason=reason)
