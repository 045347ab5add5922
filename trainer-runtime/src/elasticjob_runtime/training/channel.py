"""The one-way connection from a worker to its agent. Standard library only.

The agent listens on a Unix socket (SOCK_SEQPACKET) that the environment names; each message is one JSON object:

    {"type": "progress", "rank": 0, "round": 2, "time": 1767225600.0, "step": 120, "last_checkpoint_step": 100,
     "metrics": {"loss": 0.12}}
    {"type": "phase", "rank": 0, "round": 2, "time": 1767225600.0, "phase": "restore", "began": 1767225599.5,
     "step": 100}
    {"type": "phase", "rank": 0, "round": 2, "time": 1767225600.0, "phase": "pause", "seconds": 1800,
     "why": "evaluation"}

A message that cannot be sent at once is dropped; the next one has newer values. For messages in both directions, see
elasticjob_runtime.training.link.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

from elasticjob_runtime.contract import Env


@dataclasses.dataclass
class _Channel:
    """The connection of this process to its agent. Connects at the first message, and again after an error."""

    connection: socket.socket | None = None
    connected_to: tuple[str, int] | None = None
    """Path and process id: a forked child must not use its parent's connection."""
    muted: bool = False

    def send(self, path: str, message: bytes, wait: float) -> None:
        try:
            connection = self._connection_to(path)
            if wait:
                poll = select.poll()
                poll.register(connection, select.POLLOUT)
                poll.poll(wait * 1000)
            connection.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass  # the agent is busy: drop the message
        except OSError:  # no agent listens
            self._close()

    def _connection_to(self, path: str) -> socket.socket:
        if self.connection is None or self.connected_to != (path, os.getpid()):
            self._close()
            self.connection = socket.socket(
                socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            self.connection.connect(path)
            self.connected_to = (path, os.getpid())
        return self.connection

    def _close(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.close()
        self.connection = self.connected_to = None


_channel = _Channel()


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Sends nothing meanwhile: what is done is not training."""
    _channel.muted = True
    try:
        yield
    finally:
        _channel.muted = False


def send(kind: str, *, wait: float = 0.0, **fields: Any) -> None:
    """Sends one message; does nothing without an agent (plain python, torchrun). `wait`: s to wait for a busy
    agent."""
    path = os.environ.get(Env.AGENT_SOCKET)
    if path and not _channel.muted:
        rank, round_number = number("RANK"), number(Env.ROUND)
        message = {"type": kind, "rank": rank, "round": round_number, "time": time.time(), **fields}
        _channel.send(path, json.dumps(message, separators=(",", ":")).encode(), wait)


def send_phase(phase: str, **fields: Any) -> None:
    """Reports that this worker has finished a phase of its start: `fork`, `connect`, `restore` or `first-step`."""
    send("phase", phase=phase, **fields)


def own_local_rank() -> int:
    """This process's number among the worker processes of its agent. LOCAL_RANK is none with
    --virtual-local-rank."""
    return number(Env.LOCAL_RANK if Env.LOCAL_RANK in os.environ else "LOCAL_RANK")


def number(variable: str) -> int:
    """The value of an environment variable; 0 if it is not a number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0
