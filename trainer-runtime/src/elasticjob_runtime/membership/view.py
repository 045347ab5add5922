"""What one agent knows when it decides: `View`, and the values it is made of.

Pure data: nothing here does I/O or reads a clock. Times are monotonic seconds unless a field says otherwise.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from elasticjob_runtime.contract import (
    PARTITION_GRACE,
    ExitCode,
    FailureValue,
    MemberValue,
    OutcomeValue,
    PlanValue,
    RankValue,
    SpecValue,
    StopValue,
    SuspicionValue,
)
from elasticjob_runtime.membership import crash_loop


class Role(enum.Enum):
    """What an agent watches. Cost of a membership change stays linear because only the planner watches everybody."""

    FOLLOWER = "follower"
    """Watches the plan, its own key and its predecessor's."""
    PLANNER = "planner"
    """Watches all members and failures too."""


class WorkersState(enum.Enum):
    NONE = "none"
    RUNNING = "running"
    STOPPING = "stopping"
    """Told to stop (signal sent), not all gone yet."""
    FAILED = "failed"
    SUCCEEDED = "succeeded"


ALIVE = (WorkersState.RUNNING, WorkersState.STOPPING)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemberSettings:
    """One agent's own settings, from its flags."""

    me: str
    incarnation: str
    nproc: int
    min: int
    max: int
    max_restarts: int
    start_grace: float = 2.0
    """s without a further join before the first plan is made from fewer members than wanted. Longer: fewer restarts
    right after the start; shorter: an earlier first step where a member never comes."""
    warm_timeout: float = 120.0
    """s that the very first plan waits for a member that is there but still importing. Longer: a slow import costs no
    restart; shorter: a member that never gets ready holds up the start for less long."""
    join_delay: float = 1.0
    """s over which joins of a running job are batched while not everybody wanted is there."""
    takeover_delay: float = 0.15
    """s per rank that a follower in trouble waits for the planner before it plans itself."""
    probe_age: float = 1.0
    """s for which the answer of a probe is taken as true."""
    shutdown_grace: float = 30.0
    """s that workers which handle SIGTERM get to save at a planned change, and all workers of a member that leaves. 0:
    none."""
    reregister_grace: float = 5.0
    """s that a planner which had to register again (the store lost everything) gives the others to do so too."""
    verdict_grace: float = 1.0
    """s to hear of the other members' failures before the job is given up: what is reported first need not have
    happened first."""
    warming_delay: float = 3.0
    """s that joins which are ready wait for members that are there but still importing: one restart instead of two.
    Never after a loss."""
    peer_plan_grace: float = 1.0
    """s to see a plan that a neighbour already follows, before the workers are stopped."""
    partition_grace: float = PARTITION_GRACE
    """s after its lease ended, and after the last sign of life from outside, that a group may train on while the store
    is away. Longer: longer partitions stop nothing; shorter: what replaces it elsewhere finds it stopped, however soon
    it starts."""
    witness_probe_interval: float = 5.0
    """s between two questions whether anything outside the group answers, while the store is away."""
    witness_timeout: float = 2.0
    """s to wait for the answer; no shorter than rendezvous/witnesses.py's TIMEOUT."""
    leave_timeout: float = 2.0
    """s that a leaving agent tries to tell the others before it leaves without."""
    crash_limits: crash_loop.CrashLimits = dataclasses.field(default_factory=crash_loop.CrashLimits)
    """When restarts wait, and when they stop because they do not help."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    name: str
    create_revision: int
    value: MemberValue
    seen_at: float = 0.0
    """When this agent first saw this incarnation."""
    ready_at: float = 0.0
    """When this agent first saw it ready."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The current plan as this agent sees it."""

    value: PlanValue
    mod_revision: int
    rank: RankValue | None
    """My own rank; None: I am not in it."""
    ranks: Mapping[str, RankValue] | None = None
    """All ranks; known to the planner only."""

    @property
    def round(self) -> int:
        return self.value.round


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    value: SuspicionValue
    seen_at: float
    """When this agent read it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A planned change is coming; see StopValue."""

    value: StopValue
    seen_at: float
    """When this agent read it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoreView:
    """What the store said last."""

    registered: bool = False
    replaced_by: str = ""
    """Incarnation of another agent that took this member's name; empty: none."""
    role: Role | None = None
    """The role subscribed for; None: not subscribed."""
    predecessor: str = ""
    """The member watched as predecessor; empty: first in line."""
    first_member: MemberValue | None = None
    """The very first member, as it was when this one came; None: not known, or this one is it."""
    spec: SpecValue | None = None
    plan: Plan | None = None
    stop: Stop | None = None
    """Perhaps of an earlier plan: see View.stop."""
    last_round: int = 0
    """The highest round of a plan that this agent ever saw: a store that came back empty does not know it."""
    outcome: OutcomeValue | None = None
    members: Mapping[str, Member] = dataclasses.field(default_factory=dict)
    """All members where role is PLANNER; else myself and my predecessor."""
    suspicions: tuple[Suspicion, ...] = ()
    """Of the current round; known to all."""
    failures: tuple[FailureValue, ...] = ()
    """Failures of the current round, in the order of their writing; known to the planner only."""
    failed_at: float = 0.0
    """When this agent saw the first of them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """The local worker group."""

    state: WorkersState = WorkersState.NONE
    round: int = 0
    """Round of the last start; 0: never started."""
    failure: FailureValue | None = None
    changed_at: float = 0.0
    plan: Plan | None = None
    """The plan they were started for; outlives a store that lost it."""
    saves: bool = False
    """One of them handles SIGTERM itself."""
    saving: bool = False
    """They are STOPPING, and have time to save before they are killed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Answer of a peer to a direct question."""

    incarnation: str
    reachable: bool
    asked_at: float
    at: float
    """When it answered, or had not."""
    round: int = 0
    """Of the plan that it knows."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    settings: MemberSettings
    store: StoreView = dataclasses.field(default_factory=StoreView)
    workers: Workers = dataclasses.field(default_factory=Workers)
    probes: Mapping[str, Probe] = dataclasses.field(default_factory=dict)
    lease_expires_at: float | None = None
    """Until when the store certainly knows this member; None: it has no lease."""
    silent: frozenset[str] = frozenset()
    """Neighbours in rank order whose heartbeat is not heard."""
    silent_since: float | None = None
    """When the first of them was last heard; None: all are heard."""
    witnesses_probed_at: float | None = None
    """When it was last asked whether anything outside the group answers; None: never."""
    witness_answered_at: float | None = None
    """When something outside last answered; None: never."""
    peer_round: int = 0
    """The latest plan that a neighbour says it knows."""
    peer_round_at: float = 0.0
    """When a neighbour first said so."""
    warm: bool = True
    """Workers can be started at once: the zygote is ready, or there will not be one."""
    stores: bool = False
    """This member's stores of coming rounds listen already."""
    reported_failure: int = 0
    """Round of the last failure that was published."""
    step: int | None = None
    """Highest training step that the local workers reported in their round; None: none."""
    leaving_since: float | None = None
    """When SIGTERM (or SIGINT) came."""
    leaving_code: ExitCode = ExitCode.TERMINATED

    @property
    def spec(self) -> SpecValue:
        """The wanted membership: the operator's word, else the flags."""
        own = self.settings
        return self.store.spec or SpecValue(min=own.min, max=own.max)

    @property
    def me(self) -> Member | None:
        return self.store.members.get(self.settings.me)

    @property
    def runs_plan(self) -> bool:
        """The last workers were started for the store's plan. Rounds may repeat in a store that came back empty,
        attempts do not."""
        plan, mine = self.store.plan, self.workers.plan
        return plan is not None and mine is not None and mine.value.attempt == plan.value.attempt

    @property
    def stop(self) -> Stop | None:
        """The planned change that the current plan's workers have to make way for; None: there is none."""
        plan, stop = self.store.plan, self.store.stop
        return stop if plan is not None and stop is not None and stop.value.attempt == plan.value.attempt else None

    @property
    def max_restarts(self) -> int:
        wanted = self.spec.max_restarts
        return self.settings.max_restarts if wanted is None else wanted
