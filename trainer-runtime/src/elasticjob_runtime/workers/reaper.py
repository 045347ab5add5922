"""The warden: ends everything an agent started when the agent itself was killed, and removes its folder.

Workers die with their agent by the kernel's doing, but not what *they* started (data loaders, a shell's children). The
warden, a process of its own, waits at the end of a pipe that only the agent holds open; when it closes, it kills every
process that carries this agent's mark, and what those started. When the warden itself is killed, the agent starts
another one.
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
from elasticjob_runtime.workers.zygote.client import ROOT

logger = logging.getLogger(__name__)

MARK = "ELASTICJOB_AGENT_MARK"
"""Environment variable with a random value per agent: all its descendants inherit it."""

MOST_LIVES = 20
"""A warden that keeps dying is not started for ever."""

_BOOTSTRAP = f"import sys; sys.path.insert(0, {ROOT!r}); from elasticjob_runtime.workers.reaper import main; main()"


class Reaper:
    """The agent's side. `mark` belongs into the environment of all its children; `folder` is its own, removed by
    `close` or the warden."""

    def __init__(self, event_loop: EventLoop) -> None:
        self.mark = secrets.token_hex(8)
        self.folder = tempfile.mkdtemp(prefix="elasticrun-", dir=short_folder(tempfile.gettempdir()))
        self._event_loop = event_loop
        self._lives = 0
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """It is not needed any more."""
        with contextlib.suppress(KeyError):
            self._event_loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.kill()
        self._process.wait()
        os.close(self._pipe)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        """A fresh interpreter: the agent has threads by now, and must not fork. 20 ms, beside everything else."""
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
        self._lives += 1
        self._pidfd = os.pidfd_open(self._process.pid)
        self._event_loop.add_reader(self._pidfd, self._died)

    def _died(self) -> None:
        self._event_loop.remove_reader(self._pidfd)
        if self._lives >= MOST_LIVES:
            logger.warning(
                "the warden was killed again and again: what the workers started may outlive this agent if it is "
                "killed too"
            )
            return
        logger.warning("the warden was killed; another one takes its place")
        os.close(self._pidfd)
        os.close(self._pipe)
        self._process.wait()
        self._start()


def short_folder(path: str) -> str:
    """Where temporary files belong, unless a socket in there would have a longer name than Linux allows (108 bytes)."""
    return path if len(os.fsencode(path)) <= 50 else "/tmp"  # noqa: S108 - mkdtemp makes a name of its own


def main() -> None:
    """The process: standard input is the pipe."""
    mark, folder = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.read(0, 1)  # nobody writes: it returns when the agent is gone
    sweep(mark)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(mark: str, rounds: int = 50) -> None:
    """Kills all marked processes and what they started, again and again until none is left: they may be starting
    others."""
    for _ in range(rounds):
        found = family(marked(mark)) - {os.getpid()}
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked(mark: str) -> set[int]:
    """Process ids whose environment has the mark. Not of zombies: theirs is empty."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for pid in processes():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def family(pids: set[int]) -> set[int]:
    """Also their descendants, and who shares a session with them, workers having one each: a process may hide its
    environment."""
    found, everybody = set(pids), relations()
    sessions = {session for pid, (_, session) in everybody.items() if pid in pids}
    while (
        more := {pid for pid, (parent, session) in everybody.items() if parent in found or session in sessions} - found
    ):
        found |= more
    return found


def relations() -> dict[int, tuple[int, int]]:
    """Process id -> (its parent's, its session leader's)."""
    found = {}
    for pid in processes():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] != "Z":
                found[pid] = (int(fields[1]), int(fields[3]))
    return found


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
