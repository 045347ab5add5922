"""What can happen in a walk."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence


class Kind(enum.Enum):
    """What can happen. `who` picks an agent, `seconds` how long it lasts, `arg` says more."""

    CRASH_AGENT = enum.auto()
    """A node is lost. With `arg` even, its pod is replaced under the same name after `seconds`."""
    CRASH_PLANNER = enum.auto()
    """The next agent that writes ranks dies before it has written the head."""
    CRASH_WORKER = enum.auto()
    FREEZE = enum.auto()
    """With `arg` even, worker processes that have a session freeze too."""
    CUT_STORE = enum.auto()
    CUT_PEERS = enum.auto()
    """It reaches no other member directly, and no other member reaches it."""
    CUT_LINK = enum.auto()
    """It and the agent `arg` positions further do not reach each other."""
    PARTITION = enum.auto()
    """Both of these."""
    ISLAND = enum.auto()
    """The agents whose bits are set in `arg`, counted from `who`, reach each other, and neither the others nor the
    store nor an outside host."""
    SUSPEND = enum.auto()
    """Its machine is suspended, and its monotonic clock with it."""
    NO_DESCRIPTORS = enum.auto()
    """It can open no connections of its own."""
    STORE_FULL = enum.auto()
    """The store rejects writes (NOSPACE), but renews leases and answers reads."""
    LOSE_ANSWERS = enum.auto()
    LOSE_LEASE = enum.auto()
    STORE_DOWN = enum.auto()
    STORE_EMPTIED = enum.auto()
    """Down for `seconds`, and back without its data."""
    STORE_SET_BACK = enum.auto()
    """Down for `seconds`, and back with a copy of its data from `arg` events earlier."""
    COMPACT = enum.auto()
    JOIN = enum.auto()
    LEAVE = enum.auto()
    RESIZE = enum.auto()
    """The operator wants 1 + `arg` members."""
    DRAIN = enum.auto()
    """The operator is about to remove this member."""
    SLOW = enum.auto()
    """Messages take 20 times as long."""
    CLOCK_JUMPS = enum.auto()
    STRANGER = enum.auto()
    """A process outside the run, which has recorded what agents sent each other, uses it against every agent, and from
    now on answers at the addresses of agents that have died."""
    FINISH = enum.auto()
    """The training has done its last step."""
    FREEZE_WORKER = enum.auto()
    """Worker process number `arg` of the agent."""
    CRASH_FORMING = enum.auto()
    """The next worker process that forms a world with the others crashes while it does."""
    BREAK_LINKS = enum.auto()
    """The network closes connections between worker processes, though none of them ends."""
    STORES_GONE = enum.auto()
    """The agent's process that hosts the worker stores dies, and is started again after `seconds`."""
    JOIN_BROKEN = enum.auto()
    """An agent joins whose worker processes crash as they start, for `seconds`."""
    JOIN_SLOW = enum.auto()
    """An agent joins whose worker processes take `seconds` to start."""


FOR_SESSIONS = (Kind.FREEZE_WORKER, Kind.CRASH_FORMING, Kind.BREAK_LINKS, Kind.STORES_GONE)
"""Happen only in walks whose script has a session."""

UNCLEAR = (
    Kind.FREEZE, Kind.CUT_STORE, Kind.CUT_PEERS, Kind.CUT_LINK, Kind.PARTITION, Kind.LOSE_ANSWERS, Kind.LOSE_LEASE,
    Kind.STORE_DOWN, Kind.STORE_EMPTIED, Kind.STORE_SET_BACK, Kind.SLOW, Kind.ISLAND, Kind.SUSPEND,
    Kind.NO_DESCRIPTORS, Kind.STORE_FULL, Kind.BREAK_LINKS,
)  # fmt: skip
"""After these, a loss may look like a failure: a member did not respond, and then did."""


SWITCHES = {
    Kind.FREEZE: "frozen",
    Kind.SUSPEND: "frozen",
    Kind.NO_DESCRIPTORS: "no_descriptors",
    Kind.CUT_STORE: "cut_off",
    Kind.PARTITION: "cut_off",
    Kind.LOSE_ANSWERS: "lossy",
    Kind.STORES_GONE: "no_stores",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    after: float
    """s since the event before."""
    kind: Kind
    who: int = 0
    seconds: float = 1.0
    arg: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Walk:
    agents: int = 3
    least: int = 1
    most: int = 4
    allowed: tuple[int, ...] = ()
    max_restarts: int = 100
    operator: bool = False
    """The operator writes a spec."""
    consistent: bool = False
    """The spec has onPartition: Consistent."""
    seed: int = 0
    saves: bool = False
    """Workers handle SIGTERM, some of them until they are killed."""
    together: bool = False
    """Those that save call `checkpoint_wanted` instead: they save when all of their plan have been asked."""
    session: bool = False
    """The script has a session, so its worker processes continue in place."""
    replica_size: int = 0
    """Members of a replica; of a script with a session only."""
    nproc: int = 1
    """Worker processes per agent; of a script with a session only."""
    events: Sequence[Event] = ()
