"""What an agent can do next: the actions that `decide` returns.

The agent carries out one action at a time; that changes its view, and it decides again.
"""

from __future__ import annotations

import dataclasses

from elasticjob_runtime.contract import (
    ExitCode,
    FailureValue,
    MemberState,
    OutcomeValue,
    PlanReason,
    StopValue,
    SuspicionValue,
)
from elasticjob_runtime.membership import crash_loop
from elasticjob_runtime.membership.view import Member, Plan, Role, View, WorkersState


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """What to do next, and why. The reason is one short sentence for people; it is logged when it changes."""

    reason: str
    until: float | None = None
    """Monotonic time at which to decide again even where nothing changed before; None: not needed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wait(Action):
    """Nothing to do for now."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Register(Action):
    """Get a lease and write the member key."""

    state: MemberState = MemberState.READY
    round: int = 0
    stores: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Subscribe(Action):
    role: Role
    predecessor: str = ""
    """Member to watch; empty and FOLLOWER: find out who registered just before me."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishState(Action):
    state: MemberState
    round: int
    stores: bool = False
    saves: bool | None = None
    """None: as it was."""
    saved: int | None = None
    """None: as it was."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishFailure(Action):
    failure: FailureValue


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishSuspicion(Action):
    suspicion: SuspicionValue
    retract: bool = False
    """Take it back: it is heard again."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishOutcome(Action):
    outcome: OutcomeValue
    expected_mod_revision: int
    """mod_revision of the plan that ended so."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProposePlan(Action):
    """Write ranks and head of plan `round`; lost where anybody named has gone or another plan came first."""

    round: int
    members: tuple[Member, ...]
    """In rank order."""
    restart_count: int
    plan_reason: PlanReason
    message: str
    """The cause, for the plan's readers."""
    expected_mod_revision: int
    """mod_revision of the plan that this one follows; 0: none."""
    caused_at: float = 0.0
    """When the cause happened, Unix time, s; 0: not known."""
    crashes: crash_loop.CrashHistory = dataclasses.field(default_factory=crash_loop.CrashHistory)
    store_generation: int = 0
    """Of the etcd that this plan is written to, as the spec says; 0: not known."""
    run_began: int = 0
    """Unix time of the run's first plan, s; 0: this is it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProposeStop(Action):
    """Let the workers of the current plan save before a planned change; lost where another plan came first."""

    stop: StopValue
    expected_mod_revision: int
    """mod_revision of the plan whose workers stop."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RestorePlan(Action):
    """Write the plan that is running again: the store came back without it."""

    plan: Plan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProbePeers(Action):
    members: tuple[Member, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProbeWitnesses(Action):
    """Find out whether anything outside the group answers: then it is the store that is away, and not this group that
    is cut off."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StartWorkers(Action):
    plan: Plan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StopWorkers(Action):
    grace: float = 0.0
    """s between SIGTERM and SIGKILL; 0: SIGKILL at once (their state is lost anyway, or saved in the last checkpoint),
    also of workers that had time left."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Exit(Action):
    code: ExitCode


StoreAction = (
    Register
    | Subscribe
    | PublishState
    | PublishFailure
    | PublishSuspicion
    | PublishOutcome
    | ProposeStop
    | ProposePlan
    | RestorePlan
)
"""Actions that go to the store: one at a time, retried with backoff while it is out of reach."""


def stop(view: View, reason: str) -> Action:
    """Stops the workers at once, or waits until they have. Who had time to save has it no longer."""
    if view.workers.state is WorkersState.STOPPING and not view.workers.saving:
        return Wait(reason=f"stopping the workers: {reason}")
    return StopWorkers(reason=reason)
