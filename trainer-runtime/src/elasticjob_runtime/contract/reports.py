"""Values of the etcd keys that report what happened: failures, suspicions, progress, imports and the outcome."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from elasticjob_runtime.contract.codec import Value


class OutcomeState(str, enum.Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"


PREFLIGHT_FAILED = "the preflight checks of this machine fail: "
"""How the termination message of an agent begins whose machine fails a check. The checks, and what each of them found,
follow."""

PEER_LOST = "PeerLost"
"""Reason of a failure that only says that the worker lost a peer. The cause is most likely elsewhere."""

MISMATCH = "CollectiveMismatch"
"""Reason of a failure: ranks called different collectives, or with different sizes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FailureValue(Value):
    """`failures/<round>/<member>`: the first failure among this member's worker processes in this round."""

    member: str
    round: int
    rank: int
    local_rank: int
    exit_code: int
    """Negative: minus the number of the signal that ended the worker process."""
    reason: str
    """ApplicationError, Signal, PeerLost ..."""
    message: str
    """One line."""
    traceback: str = ""
    """The last lines, at most 4 KiB."""
    host: str = ""
    time: float = 0.0
    """Unix time of the failure, seconds."""
    step: int | None = None
    """Highest training step that this member's worker processes reported in this round; None: none."""
    ran_seconds: float = 0.0
    """How long this member's worker processes had run, seconds."""
    restart_delay: float = 0.0
    """How long the planner waits before it restarts them, if the job restarts because of this failure, seconds."""
    joining: bool = False
    """This member had taken no step since it joined the others: the failure costs the job no restart."""
    replica_world: int = 0
    """The world of its replica in which it failed; 0: there are no replicas."""
    collectives: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The newest collectives that the process had begun as an exception ended it, as contract/collectives.py packs
    them; empty: not known."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SuspicionValue(Value):
    """`suspects/<round>/<suspect>/<by>`: `by` gets no heartbeats from `suspect`. Deleted when they resume."""

    suspect: str
    by: str
    round: int
    time: float = 0.0
    """Unix time, seconds."""
    heard_at: float = 0.0
    """Last heartbeat that `by` got, Unix time, seconds; 0: not known."""
    closed: bool = False
    """The connection was closed; False: heartbeats stopped."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProgressValue(Value):
    """`training-progress`: the last progress that rank 0 reported."""

    step: int
    round: int
    steps_per_second: float = 0.0
    last_checkpoint_step: int | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """Further metrics that the script reports: loss, accuracy ..."""
    updated_at: float = 0.0
    """Unix time, seconds."""
    percent: int | None = None
    """Share of the whole training that is done; None: the script does not say, like the two below."""
    total_steps: int | None = None
    remaining_seconds: int | None = None
    """Estimate of the script."""
    optimizer_steps: int | None = None
    """Optimizer steps since the start of the worker processes, counted because the script reports no progress; the
    fields above say nothing then, except `round`, `steps_per_second` and `updated_at`. None: the script reports."""
    backward_passes: int | None = None
    """Backward passes since then, where no optimizer step is seen: `optimizer_steps` is 0, and `steps_per_second` is of
    these. None: steps are known."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TransitionValue(Value):
    """`training-transition`: how the newest round began, as rank 0's agent observed it. Durations are by one clock, in
    seconds."""

    round: int
    seconds: float | None = None
    """From the cause to the first step of the round; None: unknown."""
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    """Duration of each known phase; telemetry/transitions.py names them."""
    step: int | None = None
    """First step of the round; None: the script reports none."""
    steps_lost: int | None = None
    """Steps that are repeated; None: unknown."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HangValue(Value):
    """`worker-hangs/<member>`: what its agent found out about worker processes that take no step and are not restarted.
    Deleted with the next step. Written by agents that can name a rank, and by those of the first two members, which say
    what the others wait in."""

    member: str
    round: int
    since: float
    """When the last step ended, Unix time, seconds."""
    why: str
    """What keeps the worker processes from taking a step, in one line."""
    ranks: tuple[int, ...] = ()
    """Of this member, which keep the others waiting; empty: none is known."""
    waits_in: str = ""
    """The collective in which its other worker processes wait; empty: none is known."""
    certain: bool = True
    """False: it may be an evaluation or a save, or another member knows better."""
    reports_only: bool = False
    """Hangs are only reported (`spec.failurePolicy.hang.action`, `--hang-action`)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankEvidenceValue:
    """What one worker process does that takes no step; membership/culprit.py says what follows from it."""

    exited: bool = False
    """With code 0."""
    state: str = "S"
    """Of its main thread, as in /proc/PID/stat."""
    kernel: str = ""
    """The kernel function in which that waits."""
    idle: bool = True
    """It does nothing, and neither do its children."""
    collective: str | None = None
    """The call in which its stack says that it waits for others; empty: in none; None: its stack is not known."""
    place: str = ""
    """The newest line of the script's own code."""
    accelerator: bool = False
    resends: list[list[str]] = dataclasses.field(default_factory=list)
    """(own, peer) addresses of connections whose data is sent again and again."""
    collectives: dict[str, Any] | None = None
    """As in FailureValue; None: not known."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceValue(Value):
    """`worker-evidence/<member>`: what a member's worker processes do that take no step, for the other members. One of
    them knows better which rank the others wait for."""

    round: int
    time: float
    """Unix time, seconds."""
    ranks: dict[str, RankEvidenceValue]
    """By rank."""
    replica: int | None = None
    """With --replica-size, number of the replica in whose own world these ranks are."""

    def check(self) -> None:
        for rank in self.ranks:
            if not (rank.isdecimal() and len(rank) < 10):
                raise ValueError(f"ranks: {rank!r} is no rank")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PreflightValue(Value):
    """`worker-preflight/<member>`: what the checks of a member's machine found, before it joined or did not."""

    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    """Checks that fail by themselves: what each of them found, in one line."""
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    """What is compared with the other members, by check."""
    machine: str = ""
    """On which this is: a machine that fails a check counts once, however often its agent was started again. Empty: not
    known."""
    endpoint: str = ""
    """Where it receives data while its network is checked: address, port and a word that the sender must know,
    separated by spaces. Empty: it does not, or no longer."""
    speeds: list[float] = dataclasses.field(default_factory=list)
    """MB/s in each round of that check; -1: not known."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PaceValue(Value):
    """`worker-pace/<member>`: how fast a member's worker processes were in the last window of at least 30 steps."""

    round: int
    window: int
    """Counts the windows of the round, from 1."""
    step_seconds: float
    """Mean length of a step."""
    own_seconds: dict[str, float]
    """By rank: the mean of what a step took beyond waiting for other ranks."""
    throttled: float = 0.0
    """Share of the scheduler's periods in which the member's container had used up its CPU limit, 0 to 1."""

    def check(self) -> None:
        for rank in self.own_seconds:
            if not rank.isdecimal():
                raise ValueError(f"own_seconds: {rank!r} is no rank")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A rank that the others wait for, step after step."""

    rank: int
    member: str
    text: str
    """How slow it is, in one line."""
    signs: list[str] = dataclasses.field(default_factory=list)
    """What else says that its machine is slow, each in a few words."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StragglersValue(Value):
    """`training-stragglers`: the ranks that are slow now. Written when that changes."""

    round: int
    stragglers: list[Straggler] = dataclasses.field(default_factory=list)
    """By rank, each with `rank`, `member`, `text` (how slow it is) and `signs` (what else says so of its machine)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UnreadyValue(Value):
    """`members-unready`: members without which the others train, because their worker processes are not ready. Deleted
    when all are."""

    members: list[str]
    """The first ten; the rest of the value is about the first of them."""
    since: float
    """Unix time, seconds."""
    failure: str = ""
    """How its worker processes failed before their first step with the others, in one line; empty: they start."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LocationsValue(Value):
    """`members-locations`: where in the network the members are, as the operator knows it from their nodes' labels. For
    the order of the ranks only: without it, members are in the order of their names."""

    locations: dict[str, str]
    """By member: a path from the widest domain to the node, such as `block-1/rack-7/node-42`."""


MAX_IMPORTS = 1000
"""Most names in an ImportsValue. Typical scripts have tens, because modules imported by modules are not listed."""

MAX_IMPORT_LENGTH = 200
"""Longest name of a module, in characters."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImportsValue(Value):
    """`worker-imports`: what the script imports, as learned by rank 0's agent. A joiner imports it before it is
    ready."""

    fit: list[str]
    """Modules that are safe to import before the fork, in order."""
    late: list[str] = dataclasses.field(default_factory=list)
    """Modules that each worker process must import itself because they read its rank, in order."""
    reads: list[str] = dataclasses.field(default_factory=list)
    """The environment variables that those read."""

    def check(self) -> None:
        names = [*self.fit, *self.late, *self.reads]
        if len(names) > MAX_IMPORTS:
            raise ValueError(f"{len(names)} names, expected at most {MAX_IMPORTS}")
        if longest := next((name for name in names if len(name) > MAX_IMPORT_LENGTH), ""):
            raise ValueError(f"a name of {len(longest)} characters, expected at most {MAX_IMPORT_LENGTH}")


MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded"
"""The reason of an outcome: the job failed more often than it may restart."""

SCRIPT_FAILS = "ScriptFails"
"""The reason of an outcome: the script raised the same exception twice, before the job's first step."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeValue(Value):
    """`outcome`: the end of the run, which ends the job for every member."""

    state: OutcomeState
    reason: str
    message: str = ""
    round: int = 0
    failure: dict[str, Any] | None = None
    """The first failure of the last round, as a FailureValue's fields, if the state is failed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", OutcomeState(self.state))
