"""The agent's side of the zygote (zygote_main.py): starts it, keeps parked workers ready, replaces it by one that knows more.

Everything here runs on the agent's loop and never waits, but for handing a command to a parked worker (a send on a local socket).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import select
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from elasticjob_runtime.workers import messages
from elasticjob_runtime.workers.reactor import Reactor

logger = logging.getLogger(__name__)

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",  # what DistributedDataParallel pulls in: 2.5 s
    "numpy",
)
"""What nearly every training script imports."""

_ROOT = str(Path(__file__).resolve().parents[2])
_BOOTSTRAP = f"import sys; sys.path[0] = {_ROOT!r}; from elasticjob_runtime.workers.zygote_main import main; main()"


@dataclasses.dataclass(slots=True)
class Parked:
    """A process that waits for its command."""

    pid: int
    connection: socket.socket


class Zygote:
    """One zygote process and the children it has parked."""

    def __init__(
        self,
        python: str,
        modules: Sequence[str],
        environment: Mapping[str, str],
        reactor: Reactor,
        *,
        on_ready: Callable[[Zygote], None],
        on_gone: Callable[[Zygote, str], None],
        nice: int = 0,
    ) -> None:
        self._reactor = reactor
        self._on_ready = on_ready
        self._on_gone = on_gone
        self._waiting: list[Callable[[socket.socket], None]] = []
        self._newborn: dict[socket.socket, Callable[[], None]] = {}
        self.parked: list[Parked] = []
        self._under_way = 0
        self.ready = False
        self.seconds = 0.0
        ours, theirs = socket.socketpair()
        command = [python, "-c", _BOOTSTRAP, str(theirs.fileno()), str(os.getpid()), *modules]
        if nice:
            command = ["nice", "-n", str(nice), *command]
        self._connection = ours
        self._process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        reactor.add_reader(ours.fileno(), self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def park(self, count: int) -> None:
        """Asks for as many forks as are missing to `count` parked workers."""
        for _ in range(count - len(self.parked) - self._under_way):
            self._under_way += 1
            self._fork("worker", self._parked)

    def fork_stores(self, on_socket: Callable[[socket.socket], None]) -> None:
        self._fork("stores", on_socket)

    def close(self) -> None:
        """Ends it, with the workers that still wait. Running workers and the store host live on."""
        for parked in self.parked:
            self._forget(parked)
            parked.connection.close()
        self.parked.clear()
        if self._connection.fileno() >= 0:
            self._reactor.remove_reader(self._connection.fileno())
            self._connection.close()
        self._process.kill()
        self._process.wait()

    def take(self, patience: float = 3.0) -> Parked | None:
        """A parked worker, which is the caller's from now on.

        Where the last ones were taken a moment ago, the next is being forked: waits for it, at most `patience` seconds; a fork takes
        milliseconds, a spawned worker seconds.
        """
        end = self._reactor.now() + patience
        self.park(1)
        while not self.parked and self.ready and (left := end - self._reactor.now()) > 0:
            for ready in select.select([self._connection, *self._newborn], [], [], left)[0]:
                self._newborn.get(ready, self._read)()
        if not self.parked:
            return None
        parked = self.parked.pop(0)
        self._forget(parked)
        return parked

    def _fork(self, kind: str, on_socket: Callable[[socket.socket], None]) -> None:
        try:
            messages.send(self._connection, {"kind": kind})
            self._waiting.append(on_socket)
        except OSError as error:
            logger.debug("zygote: %s", error)

    def _read(self) -> None:
        try:
            message, fds = messages.receive(self._connection)
        except (EOFError, OSError):
            self._gone("it ended unexpectedly")
            return
        if "forked" in message:
            self._waiting.pop(0)(socket.socket(fileno=fds[0]))
        elif message["ready"]:
            self.ready = True
            self.seconds = message["seconds"]
            if message["failed"]:
                logger.debug("zygote: not preloaded: %s", message["failed"])
            self._on_ready(self)
        else:
            self._gone(message["problem"])

    def _gone(self, why: str) -> None:
        self.ready = False
        self.close()
        self._on_gone(self, why)

    def _parked(self, connection: socket.socket) -> None:
        def said() -> None:
            self._reactor.remove_reader(connection.fileno())
            del self._newborn[connection]
            self._under_way -= 1
            try:
                message, _ = messages.receive(connection)
            except (EOFError, OSError):
                connection.close()
                return
            parked = Parked(message["pid"], connection)
            self.parked.append(parked)
            self._reactor.add_reader(connection.fileno(), lambda: self._lost(parked))

        self._newborn[connection] = said
        self._reactor.add_reader(connection.fileno(), said)

    def _lost(self, parked: Parked) -> None:
        """A parked worker was killed."""
        self._forget(parked)
        parked.connection.close()
        self.parked.remove(parked)
        self.park(len(self.parked) + 1)

    def _forget(self, parked: Parked) -> None:
        self._reactor.remove_reader(parked.connection.fileno())


class ImportLog:
    """What the scripts of this agent's workers imported, read from the sockets they were parked on."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self.names: dict[str, None] = {}
        """In the order of the first import: a module's own imports come after it."""

    def follow(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        rest = b""

        def read() -> None:
            nonlocal rest
            try:
                data = connection.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._reactor.remove_reader(connection.fileno())
                connection.close()
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.names.setdefault(json.loads(line))

        self._reactor.add_reader(connection.fileno(), read)
