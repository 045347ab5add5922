"""The reaper: kills everything that a killed agent leaves behind, and removes its directory.

The kernel kills worker processes when their agent dies, but not what they started, such as data loaders or a shell's
children. The reaper is a separate process that waits at the end of a pipe that only the agent holds open. When the pipe
closes, it kills every process that carries the agent's mark, and all descendants. If the reaper itself is killed, the
agent starts another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.zygote.client import ROOT

logger = logging.getLogger(__name__)

MARK = "ELASTICJOB_AGENT_MARK"
"""Environment variable with a random value per agent, which all its descendants inherit."""

MAX_STARTS = 20
"""A reaper that keeps dying is not restarted any more."""

_BOOTSTRAP = f"import sys; sys.path.insert(0, {ROOT!r}); from elasticjob_runtime.workers.reaper import main; main()"


class Reaper:
    """The agent's side. The agent sets `mark` in the environment of all its children; `folder` is the agent's private
    directory, removed by `close` or by the reaper."""

    def __init__(self, event_loop: EventLoop) -> None:
        self.mark = secrets.token_hex(8)
        self.folder = tempfile.mkdtemp(prefix="elasticrun-", dir=short_folder(tempfile.gettempdir()))
        self._event_loop = event_loop
        self._starts = 0
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ends the reaper; call this when no child of the agent is left."""
        with contextlib.suppress(KeyError):
            self._event_loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.kill()
        self._process.wait()
        os.close(self._pipe)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        """Starts a fresh interpreter, in 20 ms: the agent has threads and must not fork without exec."""
        reading, self._pipe = os.pipe2(os.O_CLOEXEC)
        command = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, self.mark, self.folder]
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(
            command,
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        os.close(reading)
        self._starts += 1
        self._pidfd = os.pidfd_open(self._process.pid)
        self._event_loop.add_reader(self._pidfd, self._exited)

    def _exited(self) -> None:
        self._event_loop.remove_reader(self._pidfd)
        if self._starts >= MAX_STARTS:
            logger.warning(
                "the reaper keeps getting killed and is not restarted: if this agent is killed too, processes that its "
                "workers started may survive it"
            )
            return
        logger.warning("the reaper was killed; starting another")
        os.close(self._pidfd)
        os.close(self._pipe)
        self._process.wait()
        self._start()


def short_folder(path: str) -> str:
    """`path`, or /tmp if a socket in `path` would have a longer name than Linux allows (108 bytes)."""
    return path if len(os.fsencode(path)) <= 50 else "/tmp"  # noqa: S108 - mkdtemp makes a unique name


def main() -> None:
    """The reaper process; its standard input is the pipe."""
    mark, folder = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.read(0, 1)  # returns when the agent is gone: nothing is ever written
    kill_marked(mark)
    shutil.rmtree(folder, ignore_errors=True)


def kill_marked(mark: str) -> None:
    """Kills all marked processes and their descendants. Repeats until none is left, because they may be starting
    others."""
    for _ in range(50):
        found = with_descendants(marked(mark)) - {os.getpid()}
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked(mark: str) -> set[int]:
    """Ids of processes whose environment has the mark; zombies have an empty one."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for pid in processes():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def with_descendants(pids: set[int]) -> set[int]:
    """Adds all descendants, and all processes in the same sessions, which each worker has its own of: a process may
    have cleared its environment."""
    found, all_relations = set(pids), relations()
    sessions = {session for pid, (_, session) in all_relations.items() if pid in pids}
    while (
        more := {pid for pid, (parent, session) in all_relations.items() if parent in found or session in sessions}
        - found
    ):
        found |= more
    return found


def relations() -> dict[int, tuple[int, int]]:
    """Process id -> (parent's id, session leader's id), without zombies."""
    found = {}
    for pid in processes():
        with contextlib.suppress(OSError):
            fields = linux.stat_fields(pid)
            if fields[0] != "Z":
                found[pid] = (int(fields[1]), int(fields[3]))
    return found


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
