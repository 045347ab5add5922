"""What worker processes that continue in place agree on. Pure data and decisions, without torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.checkpoint.order import Held, Kind, State, choose

NO_STATE = -1
"""Step of a process that has taken no part in the training so far."""

BETWEEN_STEPS = -2
"""Step of a process whose state is between two steps: its optimizer has stepped, but its step was
interrupted before the end."""

EPOCH_ENDS = -1
"""In place of the number of an evaluation: the epoch has ended, and the script has not gone on."""

BEHIND = -2
"""In place of the number of an evaluation: others are further."""

SPREAD = 1 << 20
"""Bytes from which a tensor may come from any source. Smaller ones all come from the first one: they include buffers,
which differ between ranks (BatchNorm)."""


class SessionError(RuntimeError):
    """Training cannot continue in place. If the process ends, its agent restarts it from the latest checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompleteReplicas:
    """The complete replicas of one plan, as one of them sees it."""

    place: int
    """Of this one among them."""
    count: int
    store: tuple[str, int]
    """Host and port of the TCPStore in which they meet."""

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> CompleteReplicas:
        host, _, port = str(message["store"]).rpartition(":")
        return cls(place=int(message["place"]), count=int(message["count"]), store=(host, int(port)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """One plan, as one worker process sees it."""

    round: int
    attempt: str
    step_grace: float
    """s that a step may continue before it is interrupted, for planned changes; 0: the step cannot complete."""
    environment: Mapping[str, str]
    """The variables that a process started for this plan would have. Empty: this process is not in the plan."""
    evaluation_grace: float = 0.0
    """As `step_grace`, for an evaluation."""
    ends: bool = False
    """All processes leave, and no other plan follows."""
    saves: bool = False
    """This process saves for all of them."""
    replicas: CompleteReplicas | None = None
    """With replicas: RANK and WORLD_SIZE of `environment` are those inside the replica. None: all worker processes are
    one world."""
    others: int = 0
    """To a process that is not in the plan: the replicas that are."""

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> World:
        """Raises KeyError, TypeError or ValueError if the agent's message is not complete."""
        environment = {
            name: str(value) for name, value in (message["environment"] or {}).items() if name in Env.SET_BY_AGENT
        }
        step_grace = max(0.0, float(message.get("step_grace", 0.0)))
        world = cls(
            round=int(message["round"]),
            attempt=str(message["attempt"]),
            step_grace=step_grace,
            evaluation_grace=max(step_grace, float(message.get("evaluation_grace", 0.0))),
            environment=environment,
            ends=bool(message.get("ends")),
            saves=bool(message.get("saves")),
            replicas=CompleteReplicas.parse(message["replicas"]) if environment and message.get("replicas") else None,
            others=0 if environment else int(message.get("others", 0)),
        )
        if environment:
            _ = world.rank, world.size, world.store
        return world

    @property
    def order(self) -> int:
        """A later message of the agent has a higher one. The end of a plan's world follows it, with its round."""
        return 2 * self.round + self.ends

    @property
    def rank(self) -> int:
        """In the group that the session forms: of all worker processes or, with replicas, of those with the same RANK
        in all replicas."""
        return self.replicas.place if self.replicas else int(self.environment["RANK"])

    @property
    def size(self) -> int:
        """Of that group."""
        return self.replicas.count if self.replicas else int(self.environment["WORLD_SIZE"])

    @property
    def store(self) -> tuple[str, int]:
        """Host and port of the TCPStore that the agents host for this round."""
        if self.replicas:
            return self.replicas.store
        return self.environment["MASTER_ADDR"], int(self.environment["MASTER_PORT"])

    @property
    def prefix(self) -> str:
        """Where the processes of this plan meet in the store. Never a count of their own: they may have seen different
        numbers of plans."""
        index = f"/{self.environment['RANK']}" if self.replicas else ""
        return f"in-place/{self.round}/{self.attempt}{index}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessState:
    """How far one process is, for the others."""

    state: State
    """Its step: also NO_STATE, BETWEEN_STEPS. Its fence: of the last world in which this process agreed with others on
    its state. A step that it has committed in an older world may have been taken again, with another result in the last
    bits."""
    layout: str
    """Digest of names, shapes and types of the model's parameters and buffers."""
    unreadable: str = ""
    """Why it cannot read this checkpoint."""

    @property
    def is_live(self) -> bool:
        """Whether it has trained with others. A state from a checkpoint is outranked by any such."""
        return self.state.kind is Kind.LIVE

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> ProcessState:
        document = json.loads(text)
        state = document.pop("state")
        state |= {"kind": Kind(state["kind"]), "fence": Fence(**state["fence"])}
        return cls(state=State(**state), **document)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """Which state all processes of a world continue with."""

    sources: tuple[int, ...]
    """Ranks that have it, in ascending order."""
    receivers: tuple[int, ...]
    """All others, without strangers."""
    strangers: tuple[int, ...] = ()
    """Ranks whose models are not those of the sources: the training cannot continue there."""

    def source_of(self, receiver: int, tensor: int, size: int) -> int:
        """The rank that sends tensor number `tensor` with `size` bytes to `receiver`. Large ones are spread over all
        sources, so that a large state does not wait for one sender."""
        if size < SPREAD:
            return self.sources[0]
        return self.sources[(self.receivers.index(receiver) + tensor) % len(self.sources)]


def are_together(process_states: Sequence[ProcessState]) -> bool:
    """Whether all processes are at the same place in the script, so that they can evaluate together."""
    return len({process.state if process.is_live else process.state.evaluation for process in process_states}) == 1


def agree(process_states: Sequence[ProcessState], job: str) -> Agreement:
    """The highest committed step of a running training wins, among the processes that were in its latest world; without
    one, the newest checkpoint; without any, the state with which rank 0 begins.

    job: that of these processes. Raises SessionError if no process has a whole state, CheckpointError if none can read
    the newest one.
    """
    held = [
        Held(rank=rank, state=process.state, unreadable=process.unreadable)
        for rank, process in enumerate(process_states)
    ]
    choice = choose(held, job, shared=False, ranks=len(held))
    if choice.unreadable:
        raise CheckpointError(choice.unreadable)
    if not choice.held and any(process.state.step == BETWEEN_STEPS for process in process_states):
        raise SessionError(
            "no process has a whole state: on all of them, the step was interrupted after optimizer.step(), or after "
            "the script itself had changed parameters for the first time. Communicate before optimizer.step(), not "
            "between it and the end of session.step()"
        )
    have = choice.ranks or (0,)
    same = [rank for rank, process in enumerate(process_states) if process.layout == process_states[have[0]].layout]
    sources = tuple(rank for rank in same if rank in have)
    return Agreement(
        sources=sources,
        receivers=tuple(rank for rank in same if rank not in sources),
        strangers=tuple(rank for rank in range(len(process_states)) if rank not in same),
    )
