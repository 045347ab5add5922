"""The socket on which workers speak to their agent: one Unix socket per agent, messages of JSON (SOCK_SEQPACKET).

Today a worker reports progress on it; it is two-way, so plans can travel the other way.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from typing import Any

from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.workers.reactor import Reactor

logger = logging.getLogger(__name__)


class ReportSocket:
    """Listens at `path`; `on_progress` gets what rank 0 reports."""

    def __init__(self, reactor: Reactor, on_progress: Callable[[ProgressValue], None]) -> None:
        self._reactor = reactor
        self._on_progress = on_progress
        self._directory = tempfile.mkdtemp(prefix="elasticrun-")
        self.path = os.path.join(self._directory, "agent.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._connections: dict[int, socket.socket] = {}
        self._meter = RateMeter()
        reactor.add_reader(self._listener.fileno(), self._accept)

    def drain(self) -> None:
        """Reads what workers said and nobody read yet."""
        for fd in list(self._connections):
            self._read(fd)

    def close(self) -> None:
        for fd in list(self._connections):
            self._drop(fd)
        self._reactor.remove_reader(self._listener.fileno())
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # gone already, or no descriptor left for it
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            fd = connection.fileno()
            self._connections[fd] = connection
            self._reactor.add_reader(fd, lambda: self._read(fd))

    def _read(self, fd: int) -> None:
        while fd in self._connections:
            try:
                data = self._connections[fd].recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._take(data)
            else:
                self._drop(fd)

    def _take(self, data: bytes) -> None:
        try:
            message = json.loads(data)
            if message.get("type") == "progress" and int(message.get("rank", 0)) == 0:
                self._on_progress(self._progress(message))
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            logger.warning("a worker sent a report that cannot be read: %r", error)

    def _progress(self, message: dict[str, Any]) -> ProgressValue:
        at = float(message.get("time", 0.0))
        step = int(message["step"])
        checkpoint = message.get("last_checkpoint_step")
        return ProgressValue(
            step=step,
            epoch=int(message.get("epoch", 0)),
            steps_per_second=round(self._meter.rate(step, at), 3),
            last_checkpoint_step=None if checkpoint is None else int(checkpoint),
            metrics={str(name): float(value) for name, value in (message.get("metrics") or {}).items()},
            updated_at=at,
        )

    def _drop(self, fd: int) -> None:
        self._reactor.remove_reader(fd)
        self._connections.pop(fd).close()


class RateMeter:
    """Steps per second over the last reports, about ten seconds of them. Starts over when the step or the clock goes back."""

    WINDOW = 10.0

    def __init__(self) -> None:
        self._reports: list[tuple[float, int]] = []

    def rate(self, step: int, at: float) -> float:
        """The rate after a report of `step` at time `at` (s)."""
        if self._reports and (at < self._reports[-1][0] or step < self._reports[-1][1]):
            self._reports.clear()
        self._reports.append((at, step))
        while len(self._reports) > 2 and at - self._reports[0][0] > self.WINDOW:
            self._reports.pop(0)
        start, first = self._reports[0]
        return (step - first) / (at - start) if at > start else 0.0
