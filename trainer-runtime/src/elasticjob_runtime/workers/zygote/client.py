"""The agent's side of the zygote (server.py): starts it, and keeps parked workers ready.

Everything here runs on the agent's loop and never waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import elasticjob_runtime
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers import descriptors
from elasticjob_runtime.workers.zygote import ipc
from elasticjob_runtime.workers.zygote.preload import Verdicts, matches

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

ROOT = str(Path(elasticjob_runtime.__file__).resolve().parents[1])
"""The folder that this package lies in."""

_BOOTSTRAP = (
    f"import sys; sys.path[: not sys.flags.safe_path] = [{ROOT!r}]; from "
    "elasticjob_runtime.workers.zygote.server import main; main()"
)


def start_command(python: str, fd: int, modules: Sequence[str]) -> list[str]:
    """The command line of a zygote that talks on `fd`. Unbuffered, as torchrun's workers are: its children keep its
    streams."""
    return [python, "-u", "-c", _BOOTSTRAP, str(fd), str(os.getpid()), *modules]


@dataclasses.dataclass(slots=True)
class Preforked:
    """A process that waits for its command."""

    pid: int
    connection: socket.socket
    local_rank: int
    """Whose it is to be."""
    seen: Mapping[str, str | None]
    """What was asked of the environment as it imported what only a worker can, and the answers."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """What the next worker of a local rank will be, most likely."""

    local_rank: int
    late: Sequence[str] = ()
    """What it is to import before it gets its command."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Why a zygote is no more, or never was one."""

    why: str
    module: str = ""
    """The module after whose import it could not be forked any more; empty: none."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Callbacks:
    """What a zygote tells its owner."""

    on_ready: Callable[[Zygote], None]
    on_parked: Callable[[], None]
    on_gone: Callable[[Zygote, End], None]
    on_unparked: Callable[[Guess], None] = lambda _guess: None
    """A fork ended before it was parked."""


class Zygote:
    """One zygote process and the children it has parked. Those outlive it: they can be taken even when it was
    killed."""

    def __init__(
        self, connection: socket.socket, process: subprocess.Popen[bytes] | None, event_loop: EventLoop, tell: Callbacks
    ) -> None:
        """See `start` and `successor`."""
        self._connection = connection
        self._process = process
        self._event_loop = event_loop
        self._tell = tell
        self._waiting: list[Callable[[socket.socket], None]] = []
        """For forks that were asked for, in that order."""
        self._newborn: dict[socket.socket, Guess] = {}
        self._coming: list[Guess] = []
        self.pid = process.pid if process is not None else 0
        """0: it has not said yet."""
        self.parked: list[Preforked] = []
        self.ready = False
        self.seconds = 0.0
        self.verdicts: Verdicts | None = None
        """Of a successor that is ready: what it found out."""
        event_loop.add_reader(connection.fileno(), self._read)

    @property
    def waited_for(self) -> int:
        """Its process id, if it is one that `close` waits for; 0: whoever reaps orphans does."""
        return self._process.pid if self._process is not None else 0

    @classmethod
    def start(
        cls, python: str, modules: Sequence[str], environment: Mapping[str, str], event_loop: EventLoop, tell: Callbacks
    ) -> Zygote:
        """A fresh interpreter. Raises OSError."""
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            start_command(python, theirs.fileno(), modules),
            env=dict(environment), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        descriptors.give_back_limit(process.pid)  # to the workers, which inherit it
        return cls(ours, process, event_loop, tell)

    def successor(
        self, names: Sequence[str], verdicts: Verdicts, tell: Callbacks, on_forked: Callable[[Zygote], None]
    ) -> None:
        """Forks one that imports `names` too."""
        message = {"names": list(names), "verdicts": verdicts.to_message()}
        self._fork("successor", lambda connection: on_forked(Zygote(connection, None, self._event_loop, tell)), message)

    def coming(self, local_rank: int) -> list[Guess]:
        """What is on its way for this local rank."""
        return [guess for guess in (*self._coming, *self._newborn.values()) if guess.local_rank == local_rank]

    def park(self, guess: Guess) -> None:
        """Asks for a fork, unless there is one for that local rank, or one is on its way."""
        there = any(parked.local_rank == guess.local_rank for parked in self.parked)
        if self.ready and not there and not self.coming(guess.local_rank):
            self.fork(guess)

    def fork(self, guess: Guess) -> None:
        def forked(connection: socket.socket) -> None:
            self._coming.remove(guess)
            self._newborn[connection] = guess
            self._event_loop.add_reader(connection.fileno(), lambda: self._said(connection))

        self._coming.append(guess)
        self._fork(
            "worker", forked, {"late": list(guess.late), "environment": dict(guess.environment) if guess.late else {}}
        )

    def fork_stores(self, on_socket: Callable[[socket.socket], None]) -> None:
        self._fork("stores", on_socket, {})

    def take(self, local_rank: int, environment: Mapping[str, str]) -> Preforked | None:
        """A parked worker that is right for it, which is the caller's from now on; None: there is none at present
        (`on_parked` tells when there is). One that was meant for it and has become wrong is dropped."""
        for wrong in [
            one for one in self.parked if one.local_rank == local_rank and not matches(one.seen, environment)
        ]:
            self._drop(wrong)
        right = [one for one in self.parked if matches(one.seen, environment)]
        if not right:
            return None
        best = max(right, key=lambda one: (one.local_rank == local_rank, len(one.seen)))
        if best.local_rank != local_rank and self.coming(local_rank):
            return None  # its own is on its way; another rank's has what that one needs
        self.parked.remove(best)
        self._event_loop.remove_reader(best.connection.fileno())
        return best

    def drop_wrong(self, guesses: Iterable[Guess]) -> None:
        """Drops the parked workers that will not be right, as is now known."""
        wanted = {guess.local_rank: guess.environment for guess in guesses}
        for parked in list(self.parked):
            if not matches(parked.seen, wanted.get(parked.local_rank, {})):
                self._drop(parked)

    def close(self) -> None:
        """Ends it, with the workers that still wait. Running workers and the store host live on."""
        for parked in list(self.parked):
            self._drop(parked)
        for newborn in self._newborn:
            self._event_loop.remove_reader(newborn.fileno())
            newborn.close()
        self._newborn.clear()
        self._end()

    def _drop(self, parked: Preforked) -> None:
        self._event_loop.remove_reader(parked.connection.fileno())
        parked.connection.close()
        self.parked.remove(parked)

    def _end(self) -> None:
        self.ready = False
        if self._connection.fileno() >= 0:
            self._event_loop.remove_reader(self._connection.fileno())
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        elif self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # also while a fork of it is trying an import

    def _fork(self, kind: str, on_socket: Callable[[socket.socket], None], more: Mapping[str, Any]) -> None:
        try:
            ipc.send(self._connection, {"kind": kind, **more})
            self._waiting.append(on_socket)
        except OSError as error:
            logger.debug("zygote: %s", error)

    def _read(self) -> None:
        try:
            message, fds = ipc.receive(self._connection)
        except (EOFError, OSError):
            self._gone(End(why="it ended unexpectedly"))
            return
        if "forked" in message:
            self._forked(message["forked"], fds)
        elif "pid" in message:
            self.pid = message["pid"]
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
            self._coming.pop(0)
        else:
            self._gone(
                End(why="its store host cannot be reached" if kind == "stores" else "its successor cannot be reached")
            )

    def _started(self, message: dict[str, Any]) -> None:
        self.ready = True
        self.seconds = message["seconds"]
        if "verdicts" in message:
            self.verdicts = Verdicts.of(message["verdicts"])
        if message.get("failed"):
            logger.debug("zygote: not preloaded: %s", message["failed"])
        self._tell.on_ready(self)

    def _gone(self, end: End) -> None:
        self._end()
        self._tell.on_gone(self, end)

    def _said(self, connection: socket.socket) -> None:
        """A fork is parked, or is no more."""
        self._event_loop.remove_reader(connection.fileno())
        guess = self._newborn.pop(connection)
        try:
            message, _ = ipc.receive(connection)
        except (EOFError, OSError):
            connection.close()
            self._tell.on_unparked(guess)
            return
        parked = Preforked(message["pid"], connection, guess.local_rank, message["seen"])
        self.parked.append(parked)
        self._event_loop.add_reader(connection.fileno(), lambda: self._lost(parked, guess))
        self._tell.on_parked()

    def _lost(self, parked: Preforked, guess: Guess) -> None:
        """A parked worker was killed."""
        self._drop(parked)
        self.park(guess)


class ImportLog:
    """What the scripts of this agent's workers imported, read from the sockets they were parked on."""

    def __init__(self, event_loop: EventLoop, on_name: Callable[[str], None]) -> None:
        """`on_name`: is told each once, in the order of the first import: a module's own imports come after it."""
        self._event_loop = event_loop
        self._on_name = on_name
        self._names: set[str] = set()
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
                self._event_loop.remove_reader(connection.fileno())
                connection.close()
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

        self._event_loop.add_reader(connection.fileno(), read)

    def _take(self, told: object) -> None:
        if isinstance(told, str):
            if told not in self._names:
                self._names.add(told)
                self._on_name(told)
        elif isinstance(told, list) and not self._warned:
            self._warned = True
            logger.warning(
                "the script sets %s, which its libraries had read already when they were preloaded: set it outside of "
                "the script, or use "
                "--start-method=spawn",
                ", ".join(map(str, told)),
            )
