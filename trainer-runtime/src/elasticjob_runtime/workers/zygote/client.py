"""The agent's side of a zygote process (server.py): starts it and asks it for forks.

Everything here runs on the agent's loop. A zygote that takes no request, or ends within a message, is killed after
STUCK seconds: that is how long the loop may wait here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import elasticjob_runtime
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers import descriptors
from elasticjob_runtime.workers.zygote import ipc
from elasticjob_runtime.workers.zygote.expected import ExpectedWorker
from elasticjob_runtime.workers.zygote.pool import Preforked, PreforkedPool
from elasticjob_runtime.workers.zygote.preload import ImportResults

logger = logging.getLogger(__name__)

ROOT = str(Path(elasticjob_runtime.__file__).resolve().parents[1])
"""The directory that contains this package."""

_BOOTSTRAP = (
    f"import sys; sys.path[: not sys.flags.safe_path] = [{ROOT!r}]; from "
    "elasticjob_runtime.workers.zygote.server import main; main()"
)


def start_command(python: str, fd: int, modules: Sequence[str]) -> list[str]:
    """The command line of a zygote that communicates on `fd`. Unbuffered, as torchrun's workers are: its children keep
    its streams."""
    return [python, "-u", "-c", _BOOTSTRAP, str(fd), str(os.getpid()), *modules]


STUCK = 1.0
"""s. A zygote reads a request at once, except while it imports: then requests wait in its socket, which holds some."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ZygoteExit:
    """Why a zygote ended or never became ready."""

    reason: str
    module: str = ""
    """The module whose import made it unsafe to fork, if that is why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ZygoteCallbacks:
    on_ready: Callable[[Zygote], None]
    on_preforked: Callable[[], None]
    """A process joined `preforked`."""
    on_exit: Callable[[Zygote, ZygoteExit], None]
    on_fork_lost: Callable[[ExpectedWorker], None] = lambda _expected: None
    """A forked process ended before it joined `preforked`."""


class Zygote:
    """One zygote process, and the pool of processes it preforked, which remain usable if it is killed."""

    def __init__(
        self,
        connection: socket.socket,
        process: subprocess.Popen[bytes] | None,
        event_loop: EventLoop,
        callbacks: ZygoteCallbacks,
    ) -> None:
        """Called by `start` and `fork_successor`."""
        connection.settimeout(STUCK)
        self._connection = connection
        self._process = process
        self._event_loop = event_loop
        self._callbacks = callbacks
        self._requested: list[Callable[[socket.socket], None]] = []
        """What to do with the forks that were requested, in that order."""
        self.owes_since: float | None = None
        """Monotonic time since which a fork is requested and none came; None: it owes none."""
        self.pid = process.pid if process is not None else 0
        """0: not known yet."""
        self.pool = PreforkedPool(
            event_loop,
            self._fork_worker,
            on_preforked=callbacks.on_preforked,
            on_fork_lost=callbacks.on_fork_lost,
        )
        self.ready = False
        self.seconds = 0.0
        """How long it took to become ready."""
        self.results: ImportResults | None = None
        """Of a successor that is ready: the result of its trial imports."""
        event_loop.add_reader(connection.fileno(), self._read)

    @property
    def child_pid(self) -> int:
        """Its process id if `close` waits for it; 0 for a successor, which is reaped with the orphans."""
        return self._process.pid if self._process is not None else 0

    @classmethod
    def start(
        cls,
        python: str,
        modules: Sequence[str],
        environment: Mapping[str, str],
        event_loop: EventLoop,
        callbacks: ZygoteCallbacks,
    ) -> Zygote:
        """Starts a fresh interpreter that imports `modules`. Raises OSError."""
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            start_command(python, theirs.fileno(), modules),
            env=dict(environment), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        descriptors.restore_limit(process.pid)  # for the workers, which inherit it
        return cls(ours, process, event_loop, callbacks)

    def fork_successor(
        self,
        names: Sequence[str],
        results: ImportResults,
        callbacks: ZygoteCallbacks,
        on_forked: Callable[[Zygote], None],
    ) -> None:
        """Forks a zygote that tries to import `names` too."""
        message = {"names": list(names), "results": results.to_message()}
        self._fork(
            "successor", lambda connection: on_forked(Zygote(connection, None, self._event_loop, callbacks)), message
        )

    def fork_store_host(self, on_forked: Callable[[socket.socket], None]) -> None:
        self._fork("stores", on_forked, {})

    @property
    def preforked(self) -> list[Preforked]:
        return self.pool.preforked

    def close(self) -> None:
        """Ends it and the processes that have not become workers. Workers and the store host continue."""
        self.pool.close()
        self._kill()

    def end(self) -> None:
        """Kills it, even if it is stopped. Its end is noticed like any other."""
        self.owes_since = None
        self._end_process()

    def _kill(self) -> None:
        self.ready = self.pool.enabled = False
        if self._connection.fileno() >= 0:
            self._event_loop.remove_reader(self._connection.fileno())
            self._connection.close()
        self._end_process()
        if self._process is not None:
            self._process.wait()

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.kill()
        elif self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # the group, because a fork of it may be trying an import

    def _fork_worker(self, message: Mapping[str, Any], on_forked: Callable[[socket.socket], None]) -> None:
        self._fork("worker", on_forked, message)

    def _fork(self, kind: str, on_forked: Callable[[socket.socket], None], more: Mapping[str, Any]) -> None:
        try:
            ipc.send(self._connection, {"kind": kind, **more})
            self._requested.append(on_forked)
            self.owes_since = self.owes_since or self._event_loop.now()
        except TimeoutError:
            self.end()
        except OSError as error:
            logger.debug("zygote: %s", error)

    def _read(self) -> None:
        try:
            message, fds = ipc.receive(self._connection)
        except (EOFError, OSError):
            self._exited(ZygoteExit(reason="it ended unexpectedly"))
            return
        if "forked" in message:
            self._forked(message["forked"], fds)
        elif "pid" in message:
            self.pid = message["pid"]
        elif message["ready"]:
            self._is_ready(message)
        else:
            self._exited(ZygoteExit(reason=message["problem"], module=message["module"]))

    def _forked(self, kind: str, fds: Sequence[int]) -> None:
        on_forked = self._requested.pop(0)
        self.owes_since = self._event_loop.now() if self._requested else None
        if fds:
            on_forked(socket.socket(fileno=fds[0]))
            return
        # The kernel closed the descriptor because this process has no room for it, and so the child ends.
        logger.error("lost a forked process: %s", descriptors.explain(OSError(errno.EMFILE, "")))
        if kind == "worker":
            self.pool.fork_failed()
        else:
            child = "store host" if kind == "stores" else "successor"
            self._exited(ZygoteExit(reason=f"cannot connect to its {child}"))

    def _is_ready(self, message: dict[str, Any]) -> None:
        self.ready = self.pool.enabled = True
        self.seconds = message["seconds"]
        if "results" in message:
            self.results = ImportResults.from_message(message["results"])
        if message.get("failed"):
            logger.debug("zygote: not preloaded: %s", message["failed"])
        self._callbacks.on_ready(self)

    def _exited(self, exit_: ZygoteExit) -> None:
        self._kill()
        self._callbacks.on_exit(self, exit_)
