"""The contract between operator and runtime: every name that both programs use.

Environment variables, etcd keys and their values, exit codes, the contract version. Both sides import this module, so that neither
has to hope that the other spells a name the same way. Standard library only; no I/O.

Keys of one run, all under `<prefix>/<run-id>/` (see docs/design/rendezvous.md):

    spec                      wanted membership               operator, or the first agent from its flags
    members/<member>          leased: who is there            each agent, its own
    ranks/<attempt>/<member>  ranks of a plan                 the planner, before the plan
    plan                      the current plan's head         the planner, one compare-and-swap
    failures/<epoch>/<member> first failure of an epoch       each agent, its own
    suspects/<epoch>/<suspect>/<by>  no heartbeat any more    each agent, of its neighbours
    progress                  step and rate of the training   rank 0's agent, at most once a second
    outcome                   succeeded or failed, and why    the planner, once
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any, TypeVar

CONTRACT_VERSION = 1
"""Agents of different contract versions refuse to train together."""

DEFAULT_PREFIX = "/elasticjob"
"""etcd prefix of all jobs; `--rdzv-conf prefix=...` names another."""

DEFAULT_C10D_PORT = 29400
DEFAULT_ETCD_PORT = 2379


class Env:
    """Names of environment variables."""

    # What torchrun and elasticrun both read as their flags.
    NNODES = "PET_NNODES"
    NPROC_PER_NODE = "PET_NPROC_PER_NODE"
    RDZV_ID = "PET_RDZV_ID"
    RDZV_BACKEND = "PET_RDZV_BACKEND"
    RDZV_ENDPOINT = "PET_RDZV_ENDPOINT"
    RDZV_CONF = "PET_RDZV_CONF"
    MAX_RESTARTS = "PET_MAX_RESTARTS"

    # Our own, set by the operator on the training container.
    JOB_NAME = "ELASTICJOB_NAME"
    JOB_NAMESPACE = "ELASTICJOB_NAMESPACE"
    MEMBER_ID = "ELASTICJOB_MEMBER_ID"
    """Name of this member: the pod's name. A host name and a random part where it is not set."""
    ADDRESS = "ELASTICJOB_ADDRESS"
    """IP address at which the other members reach this one: the pod's IP. Found out where it is not set."""
    CREDENTIALS_PATH = "ELASTICJOB_CREDENTIALS_PATH"
    CHECKPOINT_DIRECTORY = "ELASTICJOB_CHECKPOINT_DIRECTORY"
    TERMINATION_LOG = "ELASTICJOB_TERMINATION_LOG"
    """File that gets the first failure of the job, for the pod's termination message. Default: /dev/termination-log where it is."""

    # Our own, set by the agent for its workers.
    AGENT_SOCKET = "ELASTICJOB_AGENT_SOCKET"
    """Unix socket (SOCK_SEQPACKET) on which a worker reports to its agent."""
    EPOCH = "ELASTICJOB_EPOCH"

    RESERVED_PREFIXES = ("PET_", "ELASTICJOB_", "TORCHELASTIC_")
    RESERVED = (
        "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
    )  # fmt: skip
    """What users may not set in a pod template: the operator or the agent sets it."""


class ExitCode(enum.IntEnum):
    """Exit codes of the agent. 1 is torchrun's for failed workers; the others follow sysexits.h where it has a fitting one."""

    SUCCEEDED = 0
    WORKERS_FAILED = 1
    """The job failed for good (outcome=failed). Starting this agent again does not help."""
    USAGE = 2
    """Wrong flags or arguments."""
    NO_SCRIPT = 66
    UNAVAILABLE = 69
    """The rendezvous service stayed out of reach for the whole join timeout. Starting again may help."""
    INTERNAL = 70
    RESTARTABLE = 75
    """Fenced or evicted: this agent lost its membership. Start it again."""
    DENIED = 77
    """The rendezvous service refused the credentials."""
    CONFIG = 78
    """This agent does not fit the others: contract version or --nproc-per-node."""
    INTERRUPTED = 130
    TERMINATED = 143
    """SIGTERM: left the job gracefully."""


class MemberState(str, enum.Enum):
    """What a member says of itself."""

    WARMING = "warming"
    """There, but not yet able to start workers. Never planned; a reason to wait a moment."""
    READY = "ready"
    LEAVING = "leaving"
    """Going away: plan without it."""
    SUCCEEDED = "succeeded"
    """All its workers of the current epoch exited with 0."""


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


T = TypeVar("T", bound="Value")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A value in etcd: a flat JSON object. Unknown fields are ignored, so that a newer peer may say more."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls: type[T], text: str | bytes) -> T:
        """Raises ValueError where `text` is not an object with the required fields."""
        data: Any = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"{cls.__name__}: expected a JSON object, got {type(data).__name__}")
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**{key: value for key, value in data.items() if key in known})
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from error


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemberValue(Value):
    """`members/<member>`, leased."""

    address: str
    ports: list[int]
    """Free TCP ports that the agent holds for the worker store; epoch n uses ports[n % len(ports)]: no world meets an old store."""
    nproc: int
    """Workers this member starts."""
    incarnation: str
    """Random, new for every start of the agent."""
    state: MemberState = MemberState.WARMING
    epoch: int = 0
    """The epoch of its last workers when this was written. With state `succeeded`: the epoch that succeeded. A store that came back
    empty learns from it that epochs go on from there."""
    contract: int = CONTRACT_VERSION
    peer_port: int = 0
    """TCP port at which the agent answers its peers; 0: none."""
    stores: bool = False
    """A TCPStore listens on every one of `ports` already: workers are its clients, none hosts it."""
    started_at: float = 0.0
    """Unix time, s."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", MemberState(self.state))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanValue(Value):
    """`plan`: head of the current plan, a few hundred bytes whatever the size."""

    epoch: int
    """1, 2, 3 ...; only grows."""
    attempt: str
    """Where the ranks of this plan are: `ranks/<attempt>/`. Names the planner, so that two planners never mix."""
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
    created_at: float = 0.0
    """Unix time, s."""

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
    """`ranks/<attempt>/<member>`."""

    group_rank: int
    incarnation: str
    """The incarnation that was planned: a member that came back under the same name is a newcomer."""
    predecessor: str = ""
    """Member of the next lower rank, which this one watches; empty: this one leads."""
    neighbours: tuple[Neighbour, ...] = ()
    """Members of the next two ranks (the first follow the last), whose heartbeats this one listens to."""

    def __post_init__(self) -> None:
        given: tuple[Any, ...] = tuple(self.neighbours)
        parsed = tuple(Neighbour(**one) if isinstance(one, dict) else one for one in given)
        object.__setattr__(self, "neighbours", parsed)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FailureValue(Value):
    """`failures/<epoch>/<member>`: the first failure among this member's workers in this epoch."""

    member: str
    epoch: int
    rank: int
    local_rank: int
    exit_code: int
    """Negative: the number of the signal that ended the worker."""
    reason: str
    """ApplicationError, Signal, OutOfMemory ..."""
    message: str
    """One line."""
    traceback: str = ""
    """Last lines, at most 4 KiB."""
    host: str = ""
    time: float = 0.0
    """Unix time of the failure, s."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SuspicionValue(Value):
    """`suspects/<epoch>/<suspect>/<by>`: `by` does not hear `suspect` any more. Taken back when it hears it again."""

    suspect: str
    by: str
    epoch: int
    time: float = 0.0
    """Unix time, s."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProgressValue(Value):
    """`progress`: what rank 0's worker said last."""

    step: int
    epoch: int
    """Plan epoch."""
    steps_per_second: float = 0.0
    last_checkpoint_step: int | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the script adds: loss, accuracy ..."""
    updated_at: float = 0.0
    """Unix time, s."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeValue(Value):
    """`outcome`: the end of the run. The only thing that ends a job for everybody."""

    state: OutcomeState
    reason: str
    message: str = ""
    epoch: int = 0
    failure: dict[str, Any] | None = None
    """The first failure of the job's last epoch (a FailureValue), where state is failed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", OutcomeState(self.state))


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run.

    >>> Keys("/elasticjob", "1234-1").member("digits-worker-0")
    '/elasticjob/1234-1/members/digits-worker-0'
    """

    prefix: str
    run_id: str

    @property
    def root(self) -> str:
        return f"{self.prefix.rstrip('/')}/{self.run_id}/"

    @property
    def spec(self) -> str:
        return self.root + "spec"

    @property
    def plan(self) -> str:
        return self.root + "plan"

    @property
    def outcome(self) -> str:
        return self.root + "outcome"

    @property
    def progress(self) -> str:
        return self.root + "progress"

    @property
    def members(self) -> str:
        return self.root + "members/"

    @property
    def ranks(self) -> str:
        return self.root + "ranks/"

    @property
    def failures(self) -> str:
        return self.root + "failures/"

    @property
    def suspects(self) -> str:
        return self.root + "suspects/"

    def member(self, name: str) -> str:
        return self.members + name

    def rank(self, attempt: str, name: str) -> str:
        return f"{self.ranks}{attempt}/{name}"

    def failure(self, epoch: int, name: str) -> str:
        return f"{self.failures}{epoch:08d}/{name}"

    def suspicion(self, epoch: int, suspect: str, by: str) -> str:
        return f"{self.suspects}{epoch:08d}/{suspect}/{by}"

    def attempt(self, epoch: int, planner: str) -> str:
        """Sorts by epoch, so that one range delete clears all older plans' ranks."""
        return f"{epoch:08d}.{planner}"
