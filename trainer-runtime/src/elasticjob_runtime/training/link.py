"""The two-way connection of a worker to its agent: plans come, snapshots go there and come back. Standard library only.

On the socket of `channel`; one JSON object per message (SOCK_SEQPACKET), file descriptors beside it:

    worker: {"type": "hello"}                                                 wants to be told of plans
    agent:  {"type": "plan", "round": 3, "world_size": 4, "group_rank": 0, "reason": "MemberJoined", ...}
            the current and every later one
    worker: {"type": "snapshot", "local_rank": 0, "round": 2, "step": 120}
            with descriptors of memory that the agent is to hold
    worker: {"type": "fetch", "local_rank": 0}
    agent:  {"type": "snapshot", "round": 2, "step": 120}
            with the descriptors; step null: there is none
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.channel import number

MOST_FDS = 16
"""File descriptors of one snapshot."""


class NoAgentError(Exception):
    """This process was not started by elasticrun, or its agent has ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """What an earlier worker of this local rank has left. The descriptors are the caller's to close."""

    round: int
    step: int
    fds: list[int]


class AgentLink:
    """Not thread-safe. Raises NoAgentError where there is no agent (any more)."""

    def __init__(self, path: str | None = None, *, timeout: float = 5.0) -> None:
        """`path`: of the agent's socket, by default the one in the environment; `timeout`: s that an answer may
        take."""
        found = path or os.environ.get(Env.AGENT_SOCKET, "")
        if not found:
            raise NoAgentError("no agent: this process was not started by elasticrun")
        self._timeout = timeout
        self._plans: collections.deque[dict[str, Any]] = collections.deque()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._connection.connect(found)
        except OSError as error:
            self._connection.close()
            raise NoAgentError(f"no agent at {found}: {error}") from error

    def fileno(self) -> int:
        """Readable when there may be a plan."""
        return self._connection.fileno()

    def follow(self) -> None:
        """Asks for the current plan and every later one."""
        self._send({"type": "hello"})

    def next_plan(self, timeout: float) -> dict[str, Any] | None:
        """The next one that has come; None: none within so many seconds."""
        end = time.monotonic() + timeout
        while not self._plans:
            if self._receive(end) is None:
                return None
        return self._plans.popleft()

    def keep(self, step: int, fds: Sequence[int]) -> None:
        """Leaves the state after `step` with the agent, which drops the one before. The caller may close its
        descriptors.

        Raises ValueError for no descriptors, or more than MOST_FDS.
        """
        if not 0 < len(fds) <= MOST_FDS:
            raise ValueError(f"a snapshot has 1 to {MOST_FDS} file descriptors, not {len(fds)}")
        self._send(
            {"type": "snapshot", "local_rank": number("LOCAL_RANK"), "round": number(Env.ROUND), "step": step}, fds
        )

    def fetch(self) -> Kept | None:
        """The newest that was kept for this local rank; None: there is none. Raises TimeoutError."""
        self._send({"type": "fetch", "local_rank": number("LOCAL_RANK")})
        end = time.monotonic() + self._timeout
        while True:
            answer = self._receive(end)
            if answer is None:
                raise TimeoutError(f"the agent did not answer within {self._timeout:g} s")
            message, fds = answer
            if message["type"] == "snapshot":
                return None if message["step"] is None else Kept(round=message["round"], step=message["step"], fds=fds)

    def close(self) -> None:
        self._connection.close()

    def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        self._connection.settimeout(self._timeout)
        try:
            socket.send_fds(self._connection, [json.dumps(message).encode()], fds, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise NoAgentError(f"the agent has gone: {error}") from error

    def _receive(self, end: float) -> tuple[dict[str, Any], list[int]] | None:
        """One message, plans put aside; None: it was too late."""
        self._connection.settimeout(max(0.001, end - time.monotonic()))
        try:
            data, fds, _, _ = socket.recv_fds(self._connection, 65536, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            return None
        except OSError as error:
            raise NoAgentError(f"the agent has gone: {error}") from error
        if not data:
            raise NoAgentError("the agent has gone")
        message = json.loads(data)
        if message["type"] == "plan":
            self._plans.append(message)
        return message, fds
