"""The values of the keys in etcd."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any, TypeVar

from elasticjob_runtime.contract import typed

CONTRACT_VERSION = 2
"""Agents of different contract versions refuse to train together."""


class MemberState(str, enum.Enum):
    """What a member says of itself."""

    WARMING = "warming"
    """There, but not yet able to start workers. Never planned; a reason to wait a moment."""
    READY = "ready"
    LEAVING = "leaving"
    """Going away: plan without it."""
    SUCCEEDED = "succeeded"
    """All its workers of the current round exited with 0."""


class OutcomeState(str, enum.Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class PlanReason(str, enum.Enum):
    """Why a plan was made. The same words serve log, metric and event."""

    START = "Start"
    WORKER_FAILED = "WorkerFailed"
    MEMBER_LOST = "MemberLost"
    MEMBER_LEFT = "MemberLeft"
    MEMBER_JOINED = "MemberJoined"
    RESIZED = "Resized"


AVAILABLE = "Available"
CONSISTENT = "Consistent"
ON_PARTITION = (AVAILABLE, CONSISTENT)
"""What a group does that loses etcd (`spec.rendezvous.onPartition`): train on within bounds, or stop with its lease."""

PARTITION_GRACE = 30.0
"""s after its lease ended for which a group on an island may train on under `Available`. The operator replaces what is
behind a silent node only after it: Kubernetes calls a node NotReady after 40 s, and the lease ended 5 s after the cut
at the latest."""

T = TypeVar("T", bound="Value")


def _fields(value: Any) -> dict[str, Any]:
    """Like dataclasses.asdict, but without its copies: a planner writes a thousand ranks at a time."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A value in etcd: a flat JSON object. Unknown fields are ignored, so that a newer peer may say more."""

    def to_json(self) -> str:
        return json.dumps(_fields(self), separators=(",", ":"), sort_keys=True, default=_fields)

    @classmethod
    def from_json(cls: type[T], text: str | bytes) -> T:
        """Raises ValueError, which names the field, where `text` is not an object with the required fields, each of its
        type and range."""
        try:
            value = cls(**typed.read(cls, json.loads(text)))
            value.check()
        except TypeError as error:  # a field is missing
            raise ValueError(f"{cls.__name__}: {error}") from error
        except RecursionError:
            raise ValueError(f"{cls.__name__}: nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: {error}") from error
        return value

    def check(self) -> None:
        """Raises ValueError where a field is of the right type and still makes no sense. Called on what is read, not on
        what is written."""


def _at_least(lowest: int, **fields: int) -> None:
    for name, value in fields.items():
        if value < lowest:
            raise ValueError(f"{name}: expected at least {lowest}, got {value}")


def _port(**fields: int) -> None:
    for name, value in fields.items():
        if not 0 <= value <= 65535:
            raise ValueError(f"{name}: {value} is no TCP port")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpecValue(Value):
    """`spec`: the wanted membership. A hint: lease liveness is the truth, and a job goes on without the operator."""

    min: int
    """Fewest members (worker pods) that train."""
    max: int
    """Most members that train; further ones are spares."""
    wanted: int = 0
    """Members wanted now; 0: max."""
    members: list[str] = dataclasses.field(default_factory=list)
    """Names of the wanted members; empty: whoever comes."""
    draining: list[str] = dataclasses.field(default_factory=list)
    """Members that are about to be taken away: plan without them."""
    allowed: list[int] = dataclasses.field(default_factory=list)
    """Allowed group sizes; empty: every size from min to max."""
    max_restarts: int | None = None
    """None: the agents' --max-restarts."""
    generation: int = 0
    """metadata.generation of the ElasticJob; 0 where an agent wrote it."""
    on_partition: str = AVAILABLE
    """`Available` or `Consistent`: whether a group that loses etcd trains on within bounds, or stops with its lease."""
    store_generation: int = 0
    """Number of the etcd of this run: set by the operator, grows when it replaces a managed etcd by force; 0: not
    known."""

    def check(self) -> None:
        _at_least(1, min=self.min, max=self.max)
        _at_least(0, wanted=self.wanted, store_generation=self.store_generation, max_restarts=self.max_restarts or 0)
        if self.max < self.min:
            raise ValueError(f"max: {self.max} is below min, {self.min}")
        if self.on_partition not in ON_PARTITION:
            raise ValueError(f"on_partition: expected one of {', '.join(ON_PARTITION)}, got {self.on_partition!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemberValue(Value):
    """`members/<member>`, leased."""

    address: str
    ports: list[int]
    """Free TCP ports that the agent holds for the worker store; round n uses ports[n % len(ports)]: no world meets an
    old store."""
    nproc: int
    """Workers this member starts."""
    incarnation: str
    """Random, new for every start of the agent."""
    state: MemberState = MemberState.WARMING
    round: int = 0
    """The round of its last workers when this was written. With state `succeeded`: the round that succeeded. A store
    that came back empty learns from it that rounds go on from there."""
    contract: int = CONTRACT_VERSION
    peer_port: int = 0
    """TCP port at which the agent answers its peers; 0: none."""
    stores: bool = False
    """A TCPStore listens on every one of `ports` already: workers are its clients, none hosts it."""
    started_at: float = 0.0
    """Unix time, s."""
    changed_at: float = 0.0
    """Since when it has this state, Unix time, s."""
    saves: bool = False
    """A worker of it handles SIGTERM: a planned change gives it time to save."""
    saved: int = 0
    """The round that was stopped for a planned change, and in which nothing is left to save here; 0: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", MemberState(self.state))

    def check(self) -> None:
        _at_least(
            0, nproc=self.nproc, round=self.round, saved=self.saved
        )  # nproc 0: torchrun's, whose agents count among themselves
        if not self.ports:
            raise ValueError("ports: expected at least one")
        for port in (*self.ports, self.peer_port):
            _port(ports=port)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LastJoinedValue(Value):
    """`worker-last-joined`: the member that registered last. A member reads it as it registers, and so learns its
    predecessor without listing all members."""

    member: str
    value: str = ""
    """What it registered, a MemberValue's JSON: who comes next need not read it. Empty: not told."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanValue(Value):
    """`plan`: head of the current plan, a few hundred bytes whatever the size."""

    round: int
    """1, 2, 3 ...; only grows."""
    attempt: str
    """Where the ranks of this plan are: `assigned-ranks/<attempt>/`. Names the planner, so that two planners never
    mix."""
    size: int
    """Members in the plan."""
    world_size: int
    """Workers in the plan."""
    master_addr: str
    master_port: int
    leader: str
    """Member of group rank 0."""
    nproc: int
    """Workers per member: the same for all."""
    agent_store: bool = False
    """The leader's store listens already; every member has such stores."""
    restart_count: int
    """Restarts of the worker group because of failures; membership changes are free."""
    reason: PlanReason
    message: str = ""
    follows: str = ""
    """Attempt of the plan before, where this one can be told by what changed: then few members have to read their new
    rank. Empty: it cannot."""
    gone: tuple[int, ...] = ()
    """Ranks of that plan that are not in this one; the others close up."""
    stayed: int = 0
    """Members of that plan that are in this one, in their order; newcomers follow."""
    created_at: float = 0.0
    """Unix time, s."""
    caused_at: float = 0.0
    """When what it answers to happened, Unix time, s: the first failure, the last sign of a lost member, the word of
    one that leaves or is ready to join; 0: nobody knows."""
    crash: str = ""
    """Kind of the last crash that was restarted; empty: none yet."""
    same_crashes: int = 0
    """Restarts in a row because of it, without progress between."""
    stalled_restarts: int = 0
    """Restarts in a row without progress, whatever crashed."""
    best_step: int | None = None
    """Highest training step known at the last crash; None: the script has not reported any."""
    store_generation: int = 0
    """That of the spec when this plan was made; 0: not known."""
    run_began: int = 0
    """Unix time of the run's first plan, s: tells its runs apart where no operator numbers them."""

    def check(self) -> None:
        _at_least(1, round=self.round, size=self.size)
        _at_least(0, world_size=self.world_size, nproc=self.nproc)  # 0: torchrun's
        _at_least(
            0,
            restart_count=self.restart_count,
            stayed=self.stayed,
            store_generation=self.store_generation,
            run_began=self.run_began,
        )
        _port(master_port=self.master_port)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", PlanReason(self.reason))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StopValue(Value):
    """`stop`: a change is planned, and workers of the current plan can save before it. The next plan deletes it."""

    attempt: str
    """Of the plan whose workers are to stop. Of any other plan it says nothing."""
    reason: PlanReason
    """Of the plan that follows."""
    message: str = ""
    caused_at: float = 0.0
    """As in the plan."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", PlanReason(self.reason))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A member whose heartbeat another one listens to."""

    name: str
    incarnation: str
    address: str
    peer_port: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankValue(Value):
    """`assigned-ranks/<attempt>/<member>`."""

    group_rank: int
    incarnation: str
    """The incarnation that was planned: a member that came back under the same name is a newcomer."""
    predecessor: str = ""
    """Member of the next lower rank, which this one watches; empty: this one leads."""
    neighbours: tuple[Neighbour, ...] = ()
    """Members of the next two ranks (the first follow the last), whose heartbeats this one listens to."""

    def check(self) -> None:
        _at_least(0, group_rank=self.group_rank)
        for one in self.neighbours:
            _port(peer_port=one.peer_port)


PEER_LOST = "PeerLost"
"""Reason of a failure that only says: somebody this worker talked to is gone. The cause is elsewhere, most likely."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FailureValue(Value):
    """`failures/<round>/<member>`: the first failure among this member's workers in this round."""

    member: str
    round: int
    rank: int
    local_rank: int
    exit_code: int
    """Negative: the number of the signal that ended the worker."""
    reason: str
    """ApplicationError, Signal, PeerLost ..."""
    message: str
    """One line."""
    traceback: str = ""
    """Last lines, at most 4 KiB."""
    host: str = ""
    time: float = 0.0
    """Unix time of the failure, s."""
    step: int | None = None
    """Highest training step that this member's workers reported in this round; None: none."""
    ran_seconds: float = 0.0
    """How long this member's workers had run."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SuspicionValue(Value):
    """`suspects/<round>/<suspect>/<by>`: `by` does not hear `suspect` any more. Taken back when it hears it again."""

    suspect: str
    by: str
    round: int
    time: float = 0.0
    """Unix time, s."""
    heard_at: float = 0.0
    """When `by` last heard it, Unix time, s; 0: not told."""
    closed: bool = False
    """Its connection was closed; else it fell silent."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProgressValue(Value):
    """`training-progress`: what rank 0's worker said last."""

    step: int
    round: int
    """Plan round."""
    steps_per_second: float = 0.0
    last_checkpoint_step: int | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the script adds: loss, accuracy ..."""
    updated_at: float = 0.0
    """Unix time, s."""


MOST_IMPORTS = 1000
"""Names in an ImportsValue. Scripts that were looked at have tens: what a module brings along is not named."""

LONGEST_IMPORT = 200
"""Characters of a module's name there."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImportsValue(Value):
    """`worker-imports`: what the script's workers import, as rank 0's agent has found out: who joins imports it before
    it is ready."""

    fit: list[str]
    """Modules that a process which is forked later may import, in order."""
    late: list[str] = dataclasses.field(default_factory=list)
    """Modules that each worker imports itself, since they ask for its rank, in order."""
    reads: list[str] = dataclasses.field(default_factory=list)
    """The environment variables that those ask for."""

    def check(self) -> None:
        names = [*self.fit, *self.late, *self.reads]
        if len(names) > MOST_IMPORTS:
            raise ValueError(f"{len(names)} names, expected at most {MOST_IMPORTS}")
        if longest := next((name for name in names if len(name) > LONGEST_IMPORT), ""):
            raise ValueError(f"a name of {len(longest)} characters, expected at most {LONGEST_IMPORT}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeValue(Value):
    """`outcome`: the end of the run. The only thing that ends a job for everybody."""

    state: OutcomeState
    reason: str
    message: str = ""
    round: int = 0
    failure: dict[str, Any] | None = None
    """The first failure of the job's last round (a FailureValue), where state is failed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", OutcomeState(self.state))
