"""Processes that a zygote has forked ahead, which wait to become workers.

Everything here runs on the agent's loop and never blocks.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.zygote import ipc
from elasticjob_runtime.workers.zygote.expected import ExpectedWorker
from elasticjob_runtime.workers.zygote.preload import matches


@dataclasses.dataclass(slots=True)
class Preforked:
    """A process that waits to become a worker."""

    pid: int
    connection: socket.socket
    local_rank: int
    """The one it was forked for."""
    variables_read: Mapping[str, str | None]
    """The worker variables that its per-rank imports read, with their values."""


class PreforkedPool:
    """The processes forked by one zygote that have not become workers."""

    def __init__(
        self,
        event_loop: EventLoop,
        fork: Callable[[Mapping[str, Any], Callable[[socket.socket], None]], None],
        *,
        on_preforked: Callable[[], None],
        on_fork_lost: Callable[[ExpectedWorker], None],
    ) -> None:
        """`fork` requests a process from the zygote and calls back with the connection to it. For the callbacks see
        ZygoteCallbacks."""
        self._event_loop = event_loop
        self._request_fork = fork
        self._on_preforked = on_preforked
        self._on_fork_lost = on_fork_lost
        self._requested: list[ExpectedWorker] = []
        self._importing: dict[socket.socket, ExpectedWorker] = {}
        """Forked, but not yet in `preforked`."""
        self.preforked: list[Preforked] = []
        self.enabled = False
        """The zygote is ready: `prefork` forks."""

    def pending(self, local_rank: int) -> list[ExpectedWorker]:
        """Processes that are being forked for this local rank."""
        pending = (*self._requested, *self._importing.values())
        return [expected for expected in pending if expected.local_rank == local_rank]

    def prefork(self, expected: ExpectedWorker) -> None:
        """Forks a process for a local rank, unless it already has one, or one is pending."""
        has_one = any(preforked.local_rank == expected.local_rank for preforked in self.preforked)
        if self.enabled and not has_one and not self.pending(expected.local_rank):
            self.fork(expected)

    def fork(self, expected: ExpectedWorker) -> None:
        def forked(connection: socket.socket) -> None:
            self._requested.remove(expected)
            self._importing[connection] = expected
            self._event_loop.add_reader(connection.fileno(), lambda: self._read_from_fork(connection))

        self._requested.append(expected)
        imports = list(expected.per_rank_imports)
        environment = dict(expected.environment) if imports else {}
        self._request_fork({"per_rank_imports": imports, "environment": environment}, forked)

    def take(self, local_rank: int, environment: Mapping[str, str]) -> Preforked | None:
        """Hands over a preforked process that can run a worker with `environment`; None: there is none at present, and
        `on_preforked` is called when that changes.

        Processes for this local rank that cannot run it are dropped.
        """
        for preforked in list(self.preforked):
            if preforked.local_rank == local_rank and not matches(preforked.variables_read, environment):
                self._drop(preforked)
        usable = [preforked for preforked in self.preforked if matches(preforked.variables_read, environment)]
        if not usable:
            return None
        best = max(usable, key=lambda one: (one.local_rank == local_rank, len(one.variables_read)))
        if best.local_rank != local_rank and self.pending(local_rank):
            return None  # wait for its own: the other local rank needs the one it has
        self.preforked.remove(best)
        self._event_loop.remove_reader(best.connection.fileno())
        return best

    def drop_outdated(self, expected: Iterable[ExpectedWorker]) -> None:
        """Drops preforked processes that cannot run the workers now expected."""
        environments = {one.local_rank: one.environment for one in expected}
        for preforked in list(self.preforked):
            if not matches(preforked.variables_read, environments.get(preforked.local_rank, {})):
                self._drop(preforked)

    def fork_failed(self) -> None:
        """The oldest fork that was requested ended without a connection."""
        self._requested.pop(0)

    def close(self) -> None:
        """Ends the processes."""
        for preforked in list(self.preforked):
            self._drop(preforked)
        for connection in self._importing:
            self._event_loop.remove_reader(connection.fileno())
            connection.close()
        self._importing.clear()

    def _drop(self, preforked: Preforked) -> None:
        self._event_loop.remove_reader(preforked.connection.fileno())
        preforked.connection.close()
        self.preforked.remove(preforked)

    def _read_from_fork(self, connection: socket.socket) -> None:
        """A forked process has finished its imports, or has ended."""
        self._event_loop.remove_reader(connection.fileno())
        expected = self._importing.pop(connection)
        try:
            message, _ = ipc.receive(connection)
        except (EOFError, OSError):
            connection.close()
            self._on_fork_lost(expected)
            return
        preforked = Preforked(message["pid"], connection, expected.local_rank, message["variables_read"])
        self.preforked.append(preforked)
        self._event_loop.add_reader(connection.fileno(), lambda: self._lost(preforked, expected))
        self._on_preforked()

    def _lost(self, preforked: Preforked, expected: ExpectedWorker) -> None:
        """A preforked process was killed."""
        self._drop(preforked)
        self.prefork(expected)
