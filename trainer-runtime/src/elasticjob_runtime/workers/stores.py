"""The agent's side of its store host: the process that keeps the TCPStores of coming epochs listening (zygote_main.host_stores)."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Sequence

from elasticjob_runtime.workers import messages
from elasticjob_runtime.workers.reactor import Reactor

logger = logging.getLogger(__name__)


class StoreHost:
    """Stores on `ports`; the one of epoch n is ports[n % len(ports)]."""

    def __init__(self, reactor: Reactor, ports: Sequence[int], on_ready: Callable[[bool], None]) -> None:
        self._reactor = reactor
        self._ports = list(ports)
        self._on_ready = on_ready
        self._connection: socket.socket | None = None
        self._used: set[int] = set()
        self._deaths = 0
        self.listening = False
        self.pid = 0
        """Of the process; 0: it has not said yet."""
        self.libuv = True

    @property
    def attached(self) -> bool:
        """There is a process, whether or not its stores listen already."""
        return self._connection is not None

    @property
    def hopeless(self) -> bool:
        """It ends whenever it is started."""
        return self._deaths > 3

    def attach(self, connection: socket.socket) -> None:
        """`connection`: to a fresh store host process."""
        self._connection = connection
        with contextlib.suppress(OSError):
            messages.send(connection, {"ports": self._ports})
        self._reactor.add_reader(connection.fileno(), self._read)

    def renew(self, epoch: int) -> None:
        """Epoch `epoch` starts with this member's store: the ones used before it get fresh."""
        current = self._ports[epoch % len(self._ports)]
        for port in self._used - {current}:
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    messages.send(self._connection, {"renew": port})
        self._used = {current}

    def close(self) -> None:
        if self._connection is not None:
            self._reactor.remove_reader(self._connection.fileno())
            self._connection.close()
            self._connection = None
        self.listening = False

    def _read(self) -> None:
        assert self._connection is not None
        try:
            message, _ = messages.receive(self._connection)
        except (EOFError, OSError):
            message = {"error": "it ended"}
        if "error" in message:
            logger.warning("no store host (%s): rank 0's worker hosts the store", message["error"])
            self._deaths += 1
            self.close()
        else:
            self.listening = True
            self.pid = message["pid"]
            self.libuv = message["libuv"]
        self._on_ready(self.listening)
