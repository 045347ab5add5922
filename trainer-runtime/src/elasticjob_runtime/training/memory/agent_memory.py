"""Snapshots of this process's state that its agent holds, and those that it holds from earlier processes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training.channel import number, own_local_rank
from elasticjob_runtime.training.checkpoint import this_writer
from elasticjob_runtime.training.link import MAX_FDS, AgentLink, NoAgentError
from elasticjob_runtime.training.memory import format as snapshot_format
from elasticjob_runtime.training.memory.buffers import Buffer, NoMemoryError
from elasticjob_runtime.training.memory.format import Header, Layout
from elasticjob_runtime.training.memory.pair import Pair, Recovered, size_of
from elasticjob_runtime.training.memory.structure import UnsupportedStateError

logger = logging.getLogger("elasticjob_runtime.training")

MOST_PURPOSES = MAX_FDS // 2
"""Different states of one process that the agent can hold."""
LARGE = 32 << 20
"""Bytes of a snapshot for which getting memory takes noticeable time."""
AGENT_TIMEOUT = 2.0
"""s. An agent that is busy for longer gets no snapshot this time, or has none to give."""


class AgentMemory:
    """Not thread-safe. Everything is best effort: a state that cannot be kept is logged once, and training goes on."""

    def __init__(self, link: AgentLink, fence: Fence, run_id: str) -> None:
        self._link = link
        self._fence = fence
        self._run_id = run_id
        self._pairs: dict[bytes, Pair] = {}
        """By purpose; written by this process."""
        self._refused: set[bytes] = set()
        self._carried: dict[bytes, list[int]] = {}
        """By purpose; of a predecessor that has not quite ended, and so not to be written."""
        self._claims: dict[bytes, int] = {}
        """By purpose; see `continues`."""
        self._sent: tuple[Fence, list[int]] | None = None
        """What the agent has."""
        self._step = 0
        self._preparing: dict[bytes, threading.Thread | None] = {}
        self._adopted = False

    def keep(self, what: str, state: Any, step: int) -> float | None:
        """Takes a snapshot, and returns the seconds that this takes every time; None if it was not possible.

        what: the purpose, the same in a process that looks for the snapshot.
        """
        purpose = self._purpose(what)
        if purpose in self._refused:
            return None
        self._adopt()
        try:
            header = Header(
                fence=current_fence(),
                step=step,
                purpose=purpose,
                taken_at=time.time(),
                layout=Layout(structure_size=0, payload_size=0),
                claim=self._claims.get(purpose, 0),
                choice=this_writer().choice,
            )
            seconds = self._pair(purpose).write(state, header)
        except (UnsupportedStateError, NoMemoryError, OSError) as error:
            self._refused.add(purpose)
            logger.warning("no snapshots in memory: %s", error)
            return None
        self._hand_over(step)
        return seconds

    def continues(self, what: str, claim: int) -> None:
        """What `keep` keeps comes after this claim of its directory. See `checkpoint.order`."""
        self._claims[self._purpose(what)] = claim

    def knows_claim(self, what: str) -> bool:
        """Whether `continues` was called."""
        return self._purpose(what) in self._claims

    def prepare(self, what: str, state: Callable[[], Any]) -> bool:
        """Whether `keep` has the memory for a snapshot. Until then, a thread gets it, which takes a second for 1 GiB.

        state: called the first time only.
        """
        purpose = self._purpose(what)
        if purpose not in self._preparing:
            self._adopt()
            self._preparing[purpose] = self._begin_to_prepare(purpose, state())
        thread = self._preparing[purpose]
        return thread is None or not thread.is_alive()

    def _begin_to_prepare(self, purpose: bytes, state: Any) -> threading.Thread | None:
        try:
            size, pair = size_of(state), self._pair(purpose)
        except (UnsupportedStateError, NoMemoryError, OSError):
            return None  # `keep` says so
        if size < LARGE:
            return None
        thread = threading.Thread(target=_prepare, args=(pair, size), name="elasticjob-snapshot-memory", daemon=True)
        thread.start()
        return thread

    def _pair(self, purpose: bytes) -> Pair:
        """Raises NoMemoryError, OSError."""
        if purpose not in self._pairs:
            if len(self._pairs) >= MOST_PURPOSES:
                raise NoMemoryError(f"this process keeps {MOST_PURPOSES} other states already")
            self._pairs[purpose] = Pair.create()
        return self._pairs[purpose]

    def newest(self, what: str) -> Recovered | None:
        """The newest complete snapshot for this purpose that any worker process of this machine has left. The caller
        closes it."""
        self._adopt()
        purpose = self._purpose(what)
        chosen: Recovered | None = None
        local_ranks = range(max(1, number("LOCAL_WORLD_SIZE")))
        found = [snapshot for local_rank in local_ranks for snapshot in self._found(purpose, local_rank)]
        for recovered in sorted(found, key=lambda snapshot: snapshot.header.age, reverse=True):
            if chosen is None and recovered.is_intact():
                chosen = recovered
                continue
            if chosen is None:
                logger.warning("the snapshot of step %d in memory is damaged; taking the one before", recovered.step)
            recovered.close()
        return chosen

    def shards(self, what: str) -> list[tuple[Recovered, bool]]:
        """The complete snapshots for this purpose of this local rank, and whether each is a copy from another member.
        Unchecked. The caller closes them."""
        self._adopt()
        purpose = self._purpose(what)
        own = self._found(purpose, own_local_rank())
        copies = self._found(purpose, own_local_rank(), copies_of=max(1, number("LOCAL_WORLD_SIZE")))
        return [*((snapshot, False) for snapshot in own), *((snapshot, True) for snapshot in copies)]

    def refuses(self, what: str) -> bool:
        """Whether it has turned out that `keep` cannot take snapshots for this purpose."""
        return self._purpose(what) in self._refused

    def copy(self, what: str, step: int, *, last: bool = False) -> None:
        """Asks the agent to copy the snapshot of `step` to its neighbour. last: before a planned change."""
        with contextlib.suppress(NoAgentError):  # it is ending, and with it this process
            self._link.copy(step, self._purpose(what), last=last)

    def is_copying(self, what: str) -> bool:
        """Whether that is not over."""
        try:
            return self._link.is_copying(self._purpose(what))
        except NoAgentError:
            return False

    def was_copied(self, what: str) -> bool:
        """Whether the snapshot survives the change, if the last `copy` was before one, and is over."""
        return self._link.was_copied(self._purpose(what))

    def _purpose(self, what: str) -> bytes:
        return snapshot_format.purpose(self._run_id, str(self._fence.run), what)

    def _found(self, purpose: bytes, local_rank: int, *, copies_of: int = 0) -> list[Recovered]:
        """The complete snapshots for this purpose that the agent holds for a local rank. Unchecked."""
        found = []
        for fd in self._fetch(local_rank, copies_of=copies_of):
            recovered = _recovered(fd)
            if recovered is not None and recovered.header.purpose == purpose:
                found.append(recovered)
            elif recovered is not None:
                recovered.close()
        return found

    def _fetch(self, local_rank: int, *, copies_of: int = 0) -> list[int]:
        try:
            return self._link.fetch(local_rank, copies_of=copies_of)
        except (NoAgentError, TimeoutError) as error:
            logger.warning("no snapshot from the agent: %s", error)
            return []

    def _adopt(self) -> None:
        """Continues in the memory of this process's predecessor: its pages are there already, and what this process
        does not replace stays with the agent."""
        if self._adopted:
            return
        self._adopted = True
        fds = self._fetch(own_local_rank())
        for first, second in zip(fds[::2], fds[1::2], strict=False):
            purposes = {found.header.purpose for fd in (first, second) if (found := _recovered(os.dup(fd))) is not None}
            pair = Pair.adopt([first, second])
            if len(purposes) != 1:
                for fd in (first, second):
                    os.close(fd)
            elif pair is not None:
                self._pairs[purposes.pop()] = pair
            else:
                self._carried[purposes.pop()] = [first, second]

    def _hand_over(self, step: int) -> None:
        """Gives the descriptors to the agent, once: later snapshots are in the same memory."""
        kept = {**self._carried, **{purpose: pair.fds for purpose, pair in self._pairs.items()}}
        fds = [fd for group in kept.values() for fd in group][:MAX_FDS]
        wanted = (current_fence(), fds)
        if self._sent == wanted:
            return
        self._step = max(self._step, step)  # the agent does not go back within a round
        with contextlib.suppress(NoAgentError):  # it is ending, and with it this process
            self._link.keep(self._step, fds)
            self._sent = wanted


def _prepare(pair: Pair, size: int) -> None:
    with contextlib.suppress(NoMemoryError):  # `keep` says so
        pair.prepare(size)


def current_fence() -> Fence:
    """Of the worker group that this process belongs to now: it changes if the process continues in place."""
    return Fence.parse(os.environ[Env.FENCE])


def _recovered(fd: int) -> Recovered | None:
    """Takes over the descriptor."""
    try:
        buffer = Buffer(fd)
    except (OSError, ValueError):
        os.close(fd)
        return None
    header = buffer.header()
    if header is None:
        buffer.close()
        return None
    return Recovered(buffer, header)


@dataclasses.dataclass
class _Process:
    """The agent's memory, for this process. A forked child has none: its parent's memory is not its own."""

    pid: int = 0
    agent_memory: AgentMemory | None = None


_process = _Process()


def agent_memory_of_this_process() -> AgentMemory | None:
    """None if no agent listens (plain python, torchrun), or snapshots in memory are turned off."""
    if _process.pid != os.getpid():
        first = _process.pid == 0
        _process.pid = os.getpid()
        _process.agent_memory = _connect() if first else None
    return _process.agent_memory


def _connect() -> AgentMemory | None:
    if os.environ.get(Env.MEMORY_SNAPSHOTS, "1") == "0":
        return None
    try:
        fence = current_fence()
        return AgentMemory(AgentLink(timeout=AGENT_TIMEOUT), fence, os.environ.get("TORCHELASTIC_RUN_ID", ""))
    except (NoAgentError, KeyError, ValueError):
        return None
