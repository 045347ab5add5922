"""The agent's side of the zygote (zygote_main.py): starts it, and keeps parked workers ready.

Everything here runs on the agent's loop and never waits.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticjob_runtime.workers import descriptors, messages
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

ROOT = str(Path(__file__).resolve().parents[2])
"""The folder that this package lies in."""

_BOOTSTRAP = (
    f"import sys; sys.path[: not sys.flags.safe_path] = [{ROOT!r}]; from elasticjob_runtime.workers.zygote_main import main; main()"
)


def start_command(python: str, fd: int, modules: Sequence[str], *, careful: bool = False) -> list[str]:
    """The command line of a zygote that talks on `fd`. Unbuffered, as torchrun's workers are: its children keep its streams."""
    return [python, "-u", "-c", _BOOTSTRAP, str(fd), str(os.getpid()), "careful" if careful else "quick", *modules]


@dataclasses.dataclass(slots=True)
class Parked:
    """A process that waits for its command."""

    pid: int
    connection: socket.socket


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Why a zygote is no more, or never was one."""

    why: str
    module: str = ""
    """The module after whose import it could not be forked any more; empty: none."""


class Zygote:
    """One zygote process and the children it has parked. Those outlive it: they can be taken even when it was killed."""

    def __init__(
        self,
        python: str,
        modules: Sequence[str],
        environment: Mapping[str, str],
        reactor: Reactor,
        *,
        on_ready: Callable[[Zygote], None],
        on_parked: Callable[[], None],
        on_gone: Callable[[Zygote, End], None],
        nice: int = 0,
        careful: bool = False,
    ) -> None:
        """`careful`: rehearse each import of a learned module in a fork first, which takes twice as long and spoils nothing."""
        self._reactor = reactor
        self._on_ready = on_ready
        self._on_parked = on_parked
        self._on_gone = on_gone
        self.careful = careful
        self._waiting: list[Callable[[socket.socket], None]] = []
        self._newborn: set[socket.socket] = set()
        self.parked: list[Parked] = []
        self._under_way = 0
        self.ready = False
        self.seconds = 0.0
        self.unfit: dict[str, str] = {}
        """Module -> why it was left out."""
        ours, theirs = socket.socketpair()
        command = start_command(python, theirs.fileno(), modules, careful=careful)
        if nice:
            command = ["nice", "-n", str(nice), *command]
        self._connection = ours
        self._process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        descriptors.give_back_limit(self._process.pid)  # to the workers, which inherit it
        reactor.add_reader(ours.fileno(), self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def park(self, count: int) -> None:
        """Asks for as many forks as are missing to `count` parked workers."""
        if not self.ready:
            return
        for _ in range(count - len(self.parked) - self._under_way):
            self._under_way += 1
            self._fork("worker", self._parked)

    def fork_stores(self, on_socket: Callable[[socket.socket], None]) -> None:
        self._fork("stores", on_socket)

    def take(self) -> Parked | None:
        """A parked worker, which is the caller's from now on; None: there is none at present (`on_parked` tells when there is)."""
        if not self.parked:
            return None
        parked = self.parked.pop(0)
        self._reactor.remove_reader(parked.connection.fileno())
        return parked

    def close(self) -> None:
        """Ends it, with the workers that still wait. Running workers and the store host live on."""
        for parked in self.parked:
            self._reactor.remove_reader(parked.connection.fileno())
            parked.connection.close()
        self.parked.clear()
        for newborn in self._newborn:
            self._reactor.remove_reader(newborn.fileno())
            newborn.close()
        self._newborn.clear()
        self._end()

    def _end(self) -> None:
        self.ready = False
        if self._connection.fileno() >= 0:
            self._reactor.remove_reader(self._connection.fileno())
            self._connection.close()
        self._process.kill()
        self._process.wait()

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
            self._gone(End(why="it ended unexpectedly"))
            return
        if "forked" in message:
            self._forked(message["forked"], fds)
        elif message["ready"]:
            self._started(message)
        else:
            self._gone(End(why=message["problem"], module=message["module"]))

    def _forked(self, kind: str, fds: Sequence[int]) -> None:
        on_socket = self._waiting.pop(0)
        if fds:
            on_socket(socket.socket(fileno=fds[0]))
            return
        # The kernel has closed it, since this process has no room for it; and so the child ends.
        logger.error("a fork is lost: %s", descriptors.explain(OSError(errno.EMFILE, "")))
        if kind == "worker":
            self._under_way -= 1
        else:
            self._gone(End(why="its store host cannot be reached"))

    def _started(self, message: dict[str, Any]) -> None:
        self.ready = True
        self.seconds = message["seconds"]
        self.unfit = message["unfit"]
        if message["failed"]:
            logger.debug("zygote: not preloaded: %s", message["failed"])
        self._on_ready(self)

    def _gone(self, end: End) -> None:
        self._end()
        self._on_gone(self, end)

    def _parked(self, connection: socket.socket) -> None:
        def said() -> None:
            self._reactor.remove_reader(connection.fileno())
            self._newborn.discard(connection)
            self._under_way -= 1
            try:
                message, _ = messages.receive(connection)
            except (EOFError, OSError):
                connection.close()
                return
            parked = Parked(message["pid"], connection)
            self.parked.append(parked)
            self._reactor.add_reader(connection.fileno(), lambda: self._lost(parked))
            self._on_parked()

        self._newborn.add(connection)
        self._reactor.add_reader(connection.fileno(), said)

    def _lost(self, parked: Parked) -> None:
        """A parked worker was killed."""
        self._reactor.remove_reader(parked.connection.fileno())
        parked.connection.close()
        self.parked.remove(parked)
        self.park(len(self.parked) + 1)


class ImportLog:
    """What the scripts of this agent's workers imported, read from the sockets they were parked on."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self.names: dict[str, None] = {}
        """In the order of the first import: a module's own imports come after it."""
        self._warned = False

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
                self._take(json.loads(line))

        self._reactor.add_reader(connection.fileno(), read)

    def _take(self, told: object) -> None:
        if isinstance(told, str):
            self.names.setdefault(told)
        elif isinstance(told, list) and not self._warned:
            self._warned = True
            logger.warning(
                "the script sets %s, which its libraries had read already when they were preloaded: set it outside of the script, or use "
                "--start-method=spawn",
                ", ".join(map(str, told)),
            )
