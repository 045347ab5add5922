"""Values of the etcd keys that define who trains: spec, members, plan and ranks. For the others, see reports.py."""

from __future__ import annotations

import dataclasses
import enum
import re

from elasticjob_runtime.contract.codec import Value, require_at_least, require_ports

CONTRACT_VERSION = 3
"""Agents with different contract versions refuse to train together."""


class MemberState(str, enum.Enum):
    """The state that a member publishes about itself."""

    WARMING = "warming"
    """Registered, but not able to start worker processes yet, or again; never in a plan."""
    READY = "ready"
    LEAVING = "leaving"
    """Leaving the job; not in the next plan."""
    SUCCEEDED = "succeeded"
    """All its worker processes of the current round exited with code 0."""


class PlanReason(str, enum.Enum):
    """Why a plan was made. Logs, metrics and events use the same words."""

    START = "Start"
    WORKER_FAILED = "WorkerFailed"
    MEMBER_LOST = "MemberLost"
    MEMBER_LEFT = "MemberLeft"
    MEMBER_JOINED = "MemberJoined"
    RESIZED = "Resized"


AVAILABLE = "Available"
CONSISTENT = "Consistent"
ON_PARTITION = (AVAILABLE, CONSISTENT)
"""What a group that loses etcd does (`spec.rendezvous.onPartition`): keep training within bounds, or stop when its
lease expires."""

SECRET_BYTES = 32

NO_REPLICA = -1
"""Index in a ReplicaValue: the member belongs to no replica."""
MAX_REPLICA_SIZE = 60
"""Members of a replica, which are put together in one transaction of etcd, with two comparisons for each."""

LEASE_TTL = 5.0
"""s. The TTL of a member's lease, unless `--rdzv-conf lease_ttl=...` sets another."""

PARTITION_GRACE = 30.0
"""Seconds after lease expiry for which an isolated group may keep training under `Available`. The operator replaces
pods on a silent node only later: Kubernetes marks a node NotReady after 40 s, and the lease expires at most 5 s after
the partition began."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpecValue(Value):
    """`spec`: the wanted membership. Who is present is decided by leases, and a job runs without the operator."""

    min: int
    """The fewest members (worker pods) that train."""
    max: int
    """The most members that train; further ones are spares."""
    wanted: int = 0
    """Members wanted now; 0: max."""
    draining: list[str] = dataclasses.field(default_factory=list)
    """Members that are about to be removed; not in the next plan."""
    allowed: list[int] = dataclasses.field(default_factory=list)
    """Allowed group sizes; empty: every size from min to max."""
    replica_size: int = 0
    """Members of a replica, of which all sizes are multiples. The agents know it from their --replica-size."""
    max_restarts: int | None = None
    """None: the agents' --max-restarts."""
    fail_before_first_step: bool | None = None
    """False: a script that fails before its first step is restarted like any other. Else: the agents'
    --before-first-step."""
    hang_restarts: bool | None = None
    """False: hangs are only reported. Else: the agents' --hang-action."""
    hang_factor: float | None = None
    """None: the agents' --hang-factor."""
    hang_min: float | None = None
    """s; None: the agents' hang_min."""
    generation: int = 0
    """metadata.generation of the ElasticJob; 0 if an agent wrote the spec."""
    on_partition: str = AVAILABLE
    """`Available` or `Consistent`; see ON_PARTITION."""
    store_generation: int = 0
    """Counts the etcds of this run: the operator increments it when it replaces a managed etcd by force; 0: not
    known."""

    def check(self) -> None:
        require_at_least(1, min=self.min, max=self.max)
        require_at_least(
            0, wanted=self.wanted, store_generation=self.store_generation, max_restarts=self.max_restarts or 0,
            replica_size=self.replica_size,
        )  # fmt: skip
        if self.max < self.min:
            raise ValueError(f"max: {self.max} is below min, {self.min}")
        if self.on_partition not in ON_PARTITION:
            raise ValueError(f"on_partition: expected one of {', '.join(ON_PARTITION)}, got {self.on_partition!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaValue(Value):
    """`members-replicas/<member>`: the replica that a member belongs to. Its worker processes form a world of their
    own, which lasts over plans: all of them start and end together."""

    index: int
    """Number of the replica, from 0; no two have the same. NO_REPLICA: the member belongs to none for now."""
    world: int
    """Number of the replica's own world: 1, 2, 3 ... in the run. A member whose processes are in another one ends
    them."""
    incarnation: str
    """Of the member."""
    ordinal: int = 0
    """The member's place in the replica, from 0."""
    members: tuple[str, ...] = ()
    """Of the replica, by ordinal."""
    master_addr: str = ""
    master_port: int = 0
    """Of the own world's store, which the agent of the member with ordinal 0 hosts, or else its rank 0."""
    agent_store: bool = False
    """That agent hosts it."""

    def check(self) -> None:
        require_at_least(NO_REPLICA, index=self.index)
        require_at_least(0, world=self.world, ordinal=self.ordinal)
        require_ports(master_port=self.master_port)
        if self.index != NO_REPLICA and self.ordinal >= len(self.members):
            raise ValueError(f"ordinal: {self.ordinal} of {len(self.members)} members")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemberValue(Value):
    """`members/<member>`, leased."""

    address: str
    ports: list[int]
    """TCP ports that the agent reserves for the store of its worker processes. Round n uses ports[n % len(ports)], so
    that no worker process connects to an old store."""
    nproc: int
    """Worker processes that this member starts. 0: under torchrun, whose agents agree on it themselves."""
    incarnation: str
    """Random, new at each start of the agent."""
    state: MemberState = MemberState.WARMING
    round: int = 0
    """The round of its last worker group. In state `succeeded`: the round that succeeded. After a store came back
    empty, rounds continue from here."""
    contract: int = CONTRACT_VERSION
    peer_port: int = 0
    """TCP port on which the agent answers probes and heartbeats; 0: none."""
    stores: bool = False
    """A TCPStore already listens on each of `ports`, so no worker process needs to host it."""
    changed_at: float = 0.0
    """When it entered this state, or its worker processes got ready to join; Unix time, seconds."""
    saves: bool = False
    """A worker process handles SIGTERM or calls `checkpoint_wanted`, so a planned change gives it time to save."""
    saved: int = 0
    """The round that was stopped for a planned change and whose state is saved here; 0: none."""
    in_place: int = 0
    """The round in which it was last published that all its worker processes can continue under another plan; 0: never.
    Published again for every plan that does not say so yet, and in every round by a member outside the plan."""
    broken: str = ""
    """How the last world broke for which it requested another plan, in one line."""
    failed: int = 0
    """How often in a row its worker processes have failed before they took a step with the others. Then it is
    `warming` for a while."""
    failed_at: float = 0.0
    """When they last did, Unix time, seconds."""
    failure: str = ""
    """How, in one line."""
    replica_size: int = 0
    """Its --replica-size."""
    replica_ports: list[int] = dataclasses.field(default_factory=list)
    """TCP ports for the store of its replica's own world; two worlds in a row use different ones."""
    replica: ReplicaValue | None = None
    """The replica whose world its worker processes were in when it registered again, for a store that has lost its
    data."""
    world_over: int = 0
    """Number of the last world of its replica that has ended here; 0: none."""
    cut_from: str = ""
    """A member of its replica that did not answer it lately; empty: none. Others may reach both."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", MemberState(self.state))

    def check(self) -> None:
        require_at_least(
            0, nproc=self.nproc, round=self.round, saved=self.saved, in_place=self.in_place, failed=self.failed,
            replica_size=self.replica_size, world_over=self.world_over,
        )  # fmt: skip
        if not self.ports:
            raise ValueError("ports: expected at least one")
        for port in (*self.ports, *self.replica_ports, self.peer_port):
            require_ports(ports=port)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SecretValue(Value):
    """`agents-secret`: what the agents of one run know and no other program does. It never changes during a run."""

    secret: str = dataclasses.field(repr=False)
    """SECRET_BYTES random bytes, in hexadecimal."""

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.secret)

    def check(self) -> None:
        if not re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", self.secret):
            raise ValueError(f"secret: expected {2 * SECRET_BYTES} hexadecimal digits")  # without its value


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LastJoinedValue(Value):
    """`worker-last-joined`: the member that registered last. A member reads it as it registers, and so learns its
    predecessor without listing all members."""

    member: str
    value: str = ""
    """The MemberValue that it registered, as JSON, which saves the next member a read. Empty: not given."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanValue(Value):
    """`plan`: the current plan without its ranks; a few hundred bytes for any size."""

    round: int
    """1, 2, 3 ...; only increases."""
    attempt: str
    """The ranks of this plan are under `assigned-ranks/<attempt>/`. Contains the planner's name, so that two planners
    never share ranks."""
    size: int
    """Members in the plan."""
    world_size: int
    """Worker processes in the plan."""
    master_addr: str
    master_port: int
    leader: str
    """The member with group rank 0."""
    nproc: int
    """Worker processes per member, the same for all."""
    replica_size: int = 0
    """Members of each replica. Those of one replica have consecutive group ranks, in the order of their ordinals. 0:
    all worker processes are one world."""
    agent_store: bool = False
    """The agents host the stores of worker processes, and the leader's already listens."""
    in_place: bool = False
    """Its worker processes form the world of this plan themselves, and continue under the next one. Set later if that
    shows only after their start."""
    restart_count: int
    """Restarts of the worker group because of failures; membership changes do not count."""
    reason: PlanReason
    message: str = ""
    follows: str = ""
    """Attempt of the previous plan, if `gone` and `stayed` describe this one: then few members must read their new
    rank. Empty: they do not."""
    gone: tuple[int, ...] = ()
    """Ranks of the previous plan that are not in this one; later ranks move up."""
    stayed: int = 0
    """Number of members of the previous plan that are in this one, in the same order; joiners follow."""
    finished: tuple[str, ...] = ()
    """Members of earlier plans whose worker processes ended with code 0 while others still trained."""
    broken: int = 0
    """Plans in a row, up to the previous one, whose worlds broke without a step between."""
    suspects: tuple[str, ...] = ()
    """The members whose connection had broken when such plans last cost a restart."""
    left_out: str = ""
    """Incarnation of the member that was a suspect twice: it is in no further plan, and its agent exits. Empty: none,
    or it is gone."""
    oldest: int = 0
    """The lowest `joined` of its ranks: members with a higher one have joined others."""
    reports_steps: bool = False
    """The script reports its steps, as far as the planner knows."""
    created_at: float = 0.0
    """Unix time, seconds."""
    caused_at: float = 0.0
    """When its cause happened, Unix time, seconds: the first failure, the last heartbeat of a lost member, the
    announcement of one that leaves or is ready to join; 0: not known."""
    crash: str = ""
    """Kind of the last crash after which worker processes were restarted; empty: none yet."""
    same_crashes: int = 0
    """Consecutive restarts because of it, without progress."""
    stalled_restarts: int = 0
    """Consecutive restarts without progress, whatever crashed."""
    best_step: int | None = None
    """Highest training step known at the last crash; None: the script reported none."""
    trained: bool = False
    """The run has trained: it reported a step, or its worker processes ran for a minute."""
    store_generation: int = 0
    """The spec's when this plan was made; 0: not known."""
    run_began: int = 0
    """Unix time of the run's first plan, seconds; distinguishes runs that no operator numbers."""

    def check(self) -> None:
        require_at_least(1, round=self.round, size=self.size)
        require_at_least(0, world_size=self.world_size, nproc=self.nproc)  # 0: under torchrun
        if self.replica_size and self.size % self.replica_size:
            raise ValueError(f"size: {self.size} members are no whole number of replicas of {self.replica_size}")
        require_at_least(
            0, restart_count=self.restart_count, stayed=self.stayed, oldest=self.oldest, broken=self.broken,
            store_generation=self.store_generation, run_began=self.run_began,
        )  # fmt: skip
        require_ports(master_port=self.master_port)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", PlanReason(self.reason))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StopValue(Value):
    """`stop`: a change is planned, and the worker processes of the current plan get time to save. The next plan
    deletes it."""

    attempt: str
    """Attempt of the plan whose worker processes must stop; irrelevant to any other plan."""
    reason: PlanReason
    """Reason of the next plan."""
    message: str = ""
    caused_at: float = 0.0
    """As in the plan."""
    saver: str = ""
    """The member whose worker processes save before all members leave, where they continue in place; empty: some
    stay."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", PlanReason(self.reason))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A member that sends heartbeats to another one."""

    name: str
    incarnation: str
    address: str
    peer_port: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankValue(Value):
    """`assigned-ranks/<attempt>/<member>`."""

    group_rank: int
    incarnation: str
    """The incarnation that was planned: a member restarted under the same name is a joiner."""
    joined: int = 0
    """The round since which every plan has included it; 0: not known."""
    predecessor: str = ""
    """Member with the next lower rank, which this one watches; empty: this one is the leader."""
    neighbours: tuple[Neighbour, ...] = ()
    """Members with the next two ranks, cyclically, whose heartbeats this one expects."""

    def check(self) -> None:
        require_at_least(0, group_rank=self.group_rank)
        for neighbour in self.neighbours:
            require_ports(peer_port=neighbour.peer_port)
