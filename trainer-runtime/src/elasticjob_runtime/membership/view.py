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
    ReplicaValue,
    SpecValue,
    StopValue,
    SuspicionValue,
    UnreadyValue,
)
from elasticjob_runtime.membership import crash_loop


class Role(enum.Enum):
    """What an agent watches. Only the planner watches all members, so that a membership change costs linear time."""

    FOLLOWER = "follower"
    """Watches the plan, its own key and its predecessor's."""
    PLANNER = "planner"
    """Also watches all members and failures."""


class WorkersState(enum.Enum):
    NONE = "none"
    RUNNING = "running"
    STOPPING = "stopping"
    """The signal is sent, and some have not exited yet."""
    FAILED = "failed"
    SUCCEEDED = "succeeded"


ALIVE = (WorkersState.RUNNING, WorkersState.STOPPING)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemberSettings:
    """One agent's settings, from its flags."""

    me: str
    incarnation: str
    nproc: int
    min: int
    max: int
    max_restarts: int
    replica_size: int = 0
    """Members of a replica; 0: there are none."""
    start_grace: float = 2.0
    """Seconds without a further join before the first plan has fewer members than wanted. Longer: fewer restarts right
    after the start. Shorter: an earlier first step if a member never joins."""
    warm_timeout: float = 120.0
    """Seconds that the very first plan waits for a registered member that still imports. Longer: a slow import costs no
    restart. Shorter: a member that never becomes ready delays the start less."""
    join_delay: float = 1.0
    """Seconds over which joins of a running job are batched while wanted members are missing."""
    join_backoff: float = 5.0
    """Seconds until a joining member whose worker processes failed before their first step starts them again; doubles
    with each further failure. Longer: such a member interrupts the others less. Shorter: it joins sooner."""
    takeover_delay: float = 0.15
    """Seconds per rank that a follower with a broken plan waits for the planner before it takes over."""
    probe_age: float = 1.0
    """Seconds for which the result of a probe is valid."""
    shutdown_grace: float = 30.0
    """Seconds to save for workers that can save at a planned change, and for all workers of a leaving member; 0:
    none."""
    reregister_grace: float = 5.0
    """Seconds that a planner gives the other members to register again after the store lost its data."""
    failures_grace: float = 1.0
    """Seconds to wait for the other members' failures before the job fails: the first report need not be the first
    failure."""
    warming_delay: float = 3.0
    """Seconds that ready joiners wait for members that still import, for one restart instead of two. Not applied after
    the loss of a member."""
    peer_plan_grace: float = 1.0
    """Seconds to see a plan that a neighbour already follows before the workers are stopped."""
    partition_grace: float = PARTITION_GRACE
    """Seconds after lease expiry, and after the last sign of life from outside, that a group may train without the
    store. Longer: longer partitions do not interrupt training. Shorter: a replacement group finds it stopped sooner."""
    cut_off_wait: float = 120.0
    """Seconds after lease expiry for which a member that reaches neither the store nor a neighbour waits, without
    worker processes, before its agent exits. Longer: a longer outage of the store costs no agent that has also lost its
    neighbours. Shorter: an agent whose own network is broken is replaced sooner."""
    outside_probe_interval: float = 5.0
    """Seconds between two probes of the outside hosts while the store is unreachable."""
    outside_timeout: float = 2.0
    """Seconds to wait for an outside host; not less than TIMEOUT in rendezvous/outside_hosts.py."""
    leave_timeout: float = 2.0
    """Seconds that a leaving agent tries to announce that before it leaves anyway."""
    crash_limits: crash_loop.CrashLimits = dataclasses.field(default_factory=crash_loop.CrashLimits)
    """When restarts are delayed, and when the job fails for lack of progress."""


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
    """This member's rank; None: it is not in the plan."""
    ranks: Mapping[str, RankValue] | None = None
    """All ranks; known to the planner only."""
    replica: ReplicaValue | None = None
    """This member's replica, with --replica-size; None: not known, or there are none."""

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
    """A planned change is pending; see StopValue."""

    value: StopValue
    seen_at: float
    """When this agent read it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoreView:
    """What the store last said."""

    registered: bool = False
    replaced_by: str = ""
    """Incarnation of another agent that registered under this member's name; empty: none."""
    role: Role | None = None
    """The role whose keys are watched; None: none yet."""
    predecessor: str = ""
    """The member watched as predecessor; empty: this one is first in the succession."""
    first_member: MemberValue | None = None
    """The member that registered first, as it was when this one joined; None: not known, or this one."""
    spec: SpecValue | None = None
    plan: Plan | None = None
    stop: Stop | None = None
    """May belong to an earlier plan; see View.stop."""
    last_round: int = 0
    """The highest plan round that this agent ever saw; a store that came back empty does not know it."""
    outcome: OutcomeValue | None = None
    members: Mapping[str, Member] = dataclasses.field(default_factory=dict)
    """All members for a planner; else this member and its predecessor."""
    suspicions: tuple[Suspicion, ...] = ()
    """Of the current round; every agent sees them."""
    failures: tuple[FailureValue, ...] = ()
    """Failures of the current round in the order they were written; only the planner sees them."""
    failed_at: float = 0.0
    """When this agent saw the first of them."""
    plans_at: tuple[float, ...] = ()
    """When this agent first saw the rounds of the last plans, up to the current one; the oldest ones are left out."""
    unready: UnreadyValue | None = None
    """As published; only the planner sees it."""
    locations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Where in the network members are; see LocationsValue. Only the planner sees them."""
    replicas: Mapping[str, ReplicaValue] = dataclasses.field(default_factory=dict)
    """By member, also of earlier incarnations: all of them for a planner, else this member's own. See
    membership/replicas.py."""

    @property
    def planned_at(self) -> float | None:
        """When this agent first saw the round of the current plan; None: there has been none."""
        return self.plans_at[-1] if self.plans_at else None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """The local worker group."""

    state: WorkersState = WorkersState.NONE
    round: int = 0
    """Round of the last start; 0: never started."""
    failure: FailureValue | None = None
    changed_at: float = 0.0
    began_at: float = 0.0
    """When they were started, or told to continue."""
    plan: Plan | None = None
    """The plan they were started for; kept if the store loses it."""
    saves: bool = False
    """At least one handles SIGTERM or calls `checkpoint_wanted`."""
    saving: bool = False
    """They are stopping, and have time to save before they are killed."""
    entered: int | None = None
    """The last round whose world all of them were in, if they continue in place and that is not `round` yet; None: it
    is `round`."""
    movable: bool = False
    """Those that run need no restart for the next plan."""
    in_place: bool = False
    """All run, and have shown that they can continue under another plan."""
    incomplete: bool = False
    """Some have failed. The others wait to continue with their replacements."""
    waiting: bool = False
    """All are in no world, and wait for a plan that includes this member."""
    rejected_at: float | None = None
    """Since when a world of their plan could not be formed, though none of them has ended; None: that is not so."""
    rejected_why: str = ""
    """The first error that they reported of it."""

    @property
    def trained_round(self) -> int:
        """The last round in which they trained."""
        return self.round if self.entered is None else self.entered


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The result of asking a member directly whether it is alive."""

    incarnation: str
    reachable: bool
    asked_at: float
    at: float
    """When it probed_recently, or had not."""
    round: int = 0
    """Round of the plan that it knows."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    settings: MemberSettings
    store: StoreView = dataclasses.field(default_factory=StoreView)
    workers: Workers = dataclasses.field(default_factory=Workers)
    probes: Mapping[str, Probe] = dataclasses.field(default_factory=dict)
    lease_expires_at: float | None = None
    """Until when the store certainly keeps this member's lease; None: it has none."""
    silent: frozenset[str] = frozenset()
    """Neighbours from which no heartbeat arrives."""
    silent_since: float | None = None
    """Time of the oldest last heartbeat among them; None: none is silent."""
    outside_probed_at: float | None = None
    """When the outside hosts were last probed; None: never."""
    outside_answered_at: float | None = None
    """When an outside host last answered; None: never."""
    peer_round: int = 0
    """The latest plan round that a neighbour knows."""
    peer_round_at: float = 0.0
    """When a neighbour first reported it."""
    warm: bool = True
    """Workers can be started at once: the zygote is ready or not used."""
    stores: bool = False
    """This member's stores for the next rounds are listening."""
    reported_failure: int = 0
    """Round of the last failure that was published."""
    step: int | None = None
    """Highest training step that the local workers reported in this round; None: none."""
    stepped: int | None = None
    """The last round in which they reported a step; 0: none. None: not known."""
    leaving_since: float | None = None
    """When SIGTERM (or SIGINT) arrived."""
    leaving_code: ExitCode = ExitCode.TERMINATED

    @property
    def spec(self) -> SpecValue:
        """The wanted membership: from the operator, else from the flags."""
        own = self.settings
        spec = self.store.spec or SpecValue(min=own.min, max=own.max)
        if spec.replica_size != own.replica_size:
            spec = dataclasses.replace(spec, replica_size=own.replica_size)
        return spec

    @property
    def me(self) -> Member | None:
        return self.store.members.get(self.settings.me)

    @property
    def runs_plan(self) -> bool:
        """Whether the last workers were started for the store's plan. Compares attempts, because rounds may repeat in a
        store that came back empty."""
        plan, mine = self.store.plan, self.workers.plan
        return plan is not None and mine is not None and mine.value.attempt == plan.value.attempt

    @property
    def stop(self) -> Stop | None:
        """The pending planned change of the current plan; None: none."""
        plan, stop = self.store.plan, self.store.stop
        return stop if plan is not None and stop is not None and stop.value.attempt == plan.value.attempt else None

    @property
    def max_restarts(self) -> int:
        wanted = self.spec.max_restarts
        return self.settings.max_restarts if wanted is None else wanted
