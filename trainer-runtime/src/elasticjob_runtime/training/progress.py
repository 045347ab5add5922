"""`report_progress`: one datagram to the agent, never a wait. Standard library only.

The agent listens on a Unix socket (SOCK_SEQPACKET) that the environment names; each message is one JSON object:

    {"type": "progress", "rank": 0, "step": 120, "last_checkpoint_step": 100, "metrics": {"loss": 0.12}, "time": 1767225600.0}

Progress is news, not data: a message that cannot be sent at once is dropped, for the next one says more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import socket
import time

from elasticjob_runtime.contract import Env


@dataclasses.dataclass
class _Channel:
    """The connection of this process to its agent, made at the first message and again when the agent came back."""

    last_checkpoint_step: int | None = None
    connection: socket.socket | None = None
    connected_to: tuple[str, int] | None = None
    """Path and process id: a forked child must not use its parent's connection."""

    def send(self, path: str, message: bytes) -> None:
        try:
            self._connection_to(path).send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass  # the agent is busy
        except OSError:  # the agent is away
            self._close()

    def _connection_to(self, path: str) -> socket.socket:
        if self.connection is None or self.connected_to != (path, os.getpid()):
            self._close()
            self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self.connection.connect(path)
            self.connected_to = (path, os.getpid())
        return self.connection

    def _close(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.close()
        self.connection = self.connected_to = None


_channel = _Channel()


def report_progress(step: int, **metrics: float) -> None:
    """Tells the agent that `step` steps are done, with metrics of your choice: `report_progress(step, loss=loss, accuracy=accuracy)`.

    Any rank may call it, as often as it likes (about 20 us); rank 0's is what the job shows. Metrics are anything that float() takes; a
    tensor on a GPU waits for the GPU here. Values that are not finite are left out, as JSON has no word for them.

    Does nothing where there is no agent (plain python, torchrun), and never waits for one: what cannot be sent at once is dropped.

    Raises TypeError or ValueError for a metric that is no number, whether there is an agent or not.
    """
    numbers = {name: _number(name, value) for name, value in metrics.items()}
    path = os.environ.get(Env.AGENT_SOCKET)
    if not path:
        return
    message = {
        "type": "progress",
        "rank": int(os.environ.get("RANK", "0")),
        "step": int(step),
        "last_checkpoint_step": _channel.last_checkpoint_step,
        "metrics": {name: number for name, number in numbers.items() if math.isfinite(number)},
        "time": time.time(),
    }
    _channel.send(path, json.dumps(message, separators=(",", ":")).encode())


def remember_checkpoint(step: int) -> None:
    """Notes the step of the newest checkpoint for the next message. Called by `checkpoints`."""
    _channel.last_checkpoint_step = step


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a tensor or a numpy number has __float__
    except (TypeError, ValueError) as error:
        raise type(error)(f"report_progress: the metric {name!r} is not a number: {value!r}") from error
