"""The agent's side of the store host, the process that keeps the TCPStores of the next rounds listening
(zygote/server.py)."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Sequence

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.zygote import ipc

logger = logging.getLogger(__name__)


class PortUse:
    """Which round used the store on which port, so that no round finds keys of an earlier one. Pure.

    The store of round n is on ports[n % len(ports)] of its leader.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._used: dict[int, int] = {}

    def enter(self, round_number: int, *, leads: bool) -> list[int]:
        """Returns the ports whose stores must be replaced now. Called for every round that this member sees, even
        if another member leads it, so that its stores are fresh long before it leads again."""
        stale = [port for port, used_by in self._used.items() if used_by != round_number]
        for port in stale:
            del self._used[port]
        if leads:
            self._used[self._ports[round_number % len(self._ports)]] = round_number
        return stale


class StoreHost:
    """Stores on `ports`. The first `round_ports` of them (None: all) are for rounds: the store of round n is
    ports[n % round_ports]. The others are for the own world of this member's replica."""

    def __init__(
        self,
        event_loop: EventLoop,
        ports: Sequence[int],
        on_ready: Callable[[bool], None],
        *,
        round_ports: int | None = None,
    ) -> None:
        self._event_loop = event_loop
        self._ports = list(ports)
        self._on_ready = on_ready
        self._connection: socket.socket | None = None
        self._use = PortUse(ports[:round_ports])
        self._replica_port = 0
        """That of the replica's world, if this agent hosts its store; 0: it does not."""
        self._broken: set[int] = set()
        """Ports on which no store listens because it could not be opened."""
        self._deaths = 0
        self.listening = False
        """A fresh store listens on every port, or will before another member can know that this one leads."""
        self.pid = 0
        """Of the store host process; 0: not known yet."""
        self.libuv = True

    @property
    def attached(self) -> bool:
        """There is a store host process, whether its stores listen or not."""
        return self._connection is not None

    @property
    def unusable(self) -> bool:
        """It failed too often to be started again."""
        return self._deaths > 3

    def attach(self, connection: socket.socket) -> None:
        """`connection`: to a new store host process. It exits if there is one already: on a busy machine, a zygote and
        its successor are both asked for one before the first is there."""
        if self._connection is not None:
            connection.close()
            return
        self._connection = connection
        with contextlib.suppress(OSError):
            ipc.send(connection, {"ports": self._ports})
        self._event_loop.add_reader(connection.fileno(), self._read)

    def enter(self, round_number: int, *, leads: bool) -> None:
        """A round begins, with this member's store if it `leads`: stores that earlier rounds used are replaced."""
        stale = self._use.enter(round_number, leads=leads)
        for port in sorted({*stale, *self._broken}):
            self._renew(port)

    def enter_replica(self, port: int) -> None:
        """This member's replica is in the world whose store is on `port`; 0: another member hosts it."""
        if self._replica_port not in (0, port):
            self._renew(self._replica_port)
        self._replica_port = port

    def _renew(self, port: int) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                ipc.send(self._connection, {"renew": port})

    def close(self) -> None:
        if self._connection is not None:
            self._event_loop.remove_reader(self._connection.fileno())
            self._connection.close()
            self._connection = None
        self._broken.clear()
        self.listening = False

    def _read(self) -> None:
        assert self._connection is not None
        try:
            message, _ = ipc.receive(self._connection)
        except (EOFError, OSError):
            message = {"error": "it exited"}
        if "error" in message:
            logger.warning("no store host (%s); rank 0 hosts the store", message["error"])
            self._deaths += 1
            self.close()
        elif "renewed" in message:
            self._renewed(message["renewed"], message["problem"])
        else:
            self.listening = True
            self.pid = message["pid"]
            self.libuv = message["libuv"]
        self._on_ready(self.listening)

    def _renewed(self, port: int, problem: str) -> None:
        """`listening` must be right: if a plan relied on a store that is missing, its workers would wait for
        minutes."""
        if problem:
            logger.warning("no store listens on port %d (%s); until one does, rank 0 hosts the store", port, problem)
            self._broken.add(port)
        else:
            self._broken.discard(port)
        self.listening = not self._broken
