"""The two-way connection between a worker and its agent, for plans and snapshots. Standard library only.

It uses the same socket as `channel`. Each message is one JSON object, with file descriptors for snapshots; those about
plans are in elasticjob_runtime.training.session.agent:

    worker: {"type": "snapshot", "local_rank": 0, "round": 2, "step": 120}
            with descriptors of memory for the agent to hold
    worker: {"type": "fetch", "local_rank": 0}
    agent:  {"type": "snapshot", "round": 2, "step": 120}
            with the descriptors; step is null if there is no snapshot
    worker: {"type": "fetch", "local_rank": 0, "copies_of": 4}                the copies from other members: one of 4
            processes asks, which have equal shares of them
    worker: {"type": "copy", "local_rank": 0, "step": 120, "purpose": "..."}  copy this snapshot to the neighbour; with
            "last": true, as fast as possible, because this worker saves before a planned change
    agent:  {"type": "copied", "step": 120, "purpose": "...", "copied": true} that is over; false: it was not possible
    worker: {"type": "saves", "rank": 0, "round": 2}                          it saves when asked
    agent:  {"type": "save", "seconds": 30.0, "stays": true}                  asks for that, before a planned change;
            false: this member may not be in the next plan
    worker: {"type": "saved", "rank": 0, "round": 2}                          it may be killed now
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.channel import number, own_local_rank

MAX_FDS = 16
"""File descriptors per snapshot."""


class NoAgentError(Exception):
    """This process was not started by elasticrun, or its agent has ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveOrder:
    """What the agent says before a planned change."""

    seconds: float
    """Until it kills this worker."""
    stays: bool
    """Whether this member is in the next plan, as far as it knows: then what it has in memory is not lost."""


class AgentLink:
    """Not thread-safe, except `tell`. All methods raise NoAgentError if there is no agent, or it has ended."""

    def __init__(self, path: str | None = None, *, timeout: float = 5.0) -> None:
        """`path`: the agent's socket, by default the one in the environment; `timeout`: for responses, in s."""
        found = path or os.environ.get(Env.AGENT_SOCKET, "")
        if not found:
            raise NoAgentError("no agent: this process was not started by elasticrun")
        self._timeout = timeout
        self._copying: set[bytes] = set()
        """Purposes of the snapshots that the agent is asked to copy."""
        self._copied: set[bytes] = set()
        """Of those that it has copied."""
        self._plans: collections.deque[dict[str, Any]] = collections.deque()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._connection.connect(found)
        except OSError as error:
            self._connection.close()
            raise NoAgentError(f"no agent at {found}: {error}") from error

    def fileno(self) -> int:
        """Becomes readable when there may be a plan."""
        return self._connection.fileno()

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a message, unless the agent is so busy that there is no room for it. Any thread may call this."""
        room = select.poll()
        room.register(self._connection, select.POLLOUT)
        try:
            if room.poll(0):  # MSG_DONTWAIT alone would wait for the timeout that another thread has set
                self._connection.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, TimeoutError):
            pass
        except OSError as error:
            raise NoAgentError(f"the agent has ended: {error}") from error

    def next_plan(self, timeout: float) -> dict[str, Any] | None:
        """The next plan; None if none arrives within `timeout` seconds."""
        end = time.monotonic() + timeout
        while not self._plans:
            if self._receive(end) is None:
                return None
        return self._plans.popleft()

    def keep(self, step: int, fds: Sequence[int]) -> None:
        """Leaves a snapshot of the state after `step` with the agent, which drops the previous one. The caller may then
        close its descriptors.

        Raises ValueError if there are no descriptors, or more than MAX_FDS.
        """
        if not 0 < len(fds) <= MAX_FDS:
            raise ValueError(f"a snapshot has 1 to {MAX_FDS} file descriptors, not {len(fds)}")
        self._send({"type": "snapshot", "local_rank": own_local_rank(), "round": number(Env.ROUND), "step": step}, fds)

    def copy(self, step: int, purpose: bytes, *, last: bool = False) -> None:
        """Asks the agent to copy this snapshot of this process to its neighbour. last: before a planned change; see
        `was_copied`."""
        message = {"type": "copy", "local_rank": own_local_rank(), "step": step, "purpose": purpose.hex()}
        self._send({**message, "last": True} if last else message)
        self._copying.add(purpose)
        self._copied.discard(purpose)

    def is_copying(self, purpose: bytes) -> bool:
        """Whether the agent has not finished with the last `copy`. Does not wait."""
        while purpose in self._copying and self._receive(0.0) is not None:
            pass
        return purpose in self._copying

    def was_copied(self, purpose: bytes) -> bool:
        """Whether the last `copy` was successful. With `last`, also if this member stays, and with it
        its memory."""
        return purpose in self._copied

    def fetch(self, local_rank: int, *, copies_of: int = 0) -> list[int]:
        """The descriptors of the newest snapshot of a local rank, which the caller closes. Raises TimeoutError.

        copies_of: instead, this process's share of the copies from other members, among so many processes.
        """
        self._send({"type": "fetch", "local_rank": local_rank, **({"copies_of": copies_of} if copies_of else {})})
        end = time.monotonic() + self._timeout
        while True:
            response = self._receive(end)
            if response is None:
                raise TimeoutError(f"the agent did not respond within {self._timeout:g} s")
            message, fds = response
            if message["type"] == "snapshot":
                return fds

    def offer_to_save(self) -> None:
        """Says that this worker saves before a planned change if it is asked."""
        self._send({"type": "saves", "rank": number("RANK"), "round": number(Env.ROUND)})

    def wait_for_save_request(self) -> SaveOrder:
        """Waits until the agent asks for a save."""
        while True:
            response = self._receive(math.inf)
            if response is not None and response[0]["type"] == "save":
                return SaveOrder(seconds=float(response[0]["seconds"]), stays=bool(response[0].get("stays")))

    def report_saved(self) -> None:
        """Says that this worker has nothing left to save, so it may be killed."""
        self._send({"type": "saved", "rank": number("RANK"), "round": number(Env.ROUND)})

    def close(self) -> None:
        self._connection.close()

    def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        self._connection.settimeout(self._timeout)
        try:
            socket.send_fds(self._connection, [json.dumps(message).encode()], fds, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise NoAgentError(f"the agent has ended: {error}") from error

    def _receive(self, end: float) -> tuple[dict[str, Any], list[int]] | None:
        """Receives one message, and queues it if it is a plan; None after the timeout."""
        self._connection.settimeout(None if end == math.inf else max(0.001, end - time.monotonic()))
        try:
            data, fds, _, _ = socket.recv_fds(self._connection, 65536, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            return None
        except OSError as error:
            raise NoAgentError(f"the agent has ended: {error}") from error
        if not data:
            raise NoAgentError("the agent has ended")
        message = json.loads(data)
        if message["type"] == "plan":
            self._plans.append(message)
        if message["type"] == "copied":
            purpose = bytes.fromhex(message["purpose"])
            self._copying.discard(purpose)
            if message["copied"]:
                self._copied.add(purpose)
        return message, fds
