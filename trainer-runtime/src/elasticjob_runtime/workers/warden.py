"""The warden: ends everything an agent started when the agent itself was killed.

Workers die with their agent by the kernel's doing, but not what *they* started (data loaders, a shell's children). The warden waits at
the end of a pipe that only the agent holds open; when it closes, it kills every process that carries this agent's mark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "ELASTICJOB_AGENT_MARK"
"""Environment variable with a random value per agent: all its descendants inherit it."""


def start(mark: str) -> int:
    """Forks the warden; call it before any thread is started. Returns the descriptor that keeps it waiting: a byte sends it home."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child:
        os.close(reading)
        return writing
    try:
        os.close(writing)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not os.read(reading, 1):
            sweep(mark)
    finally:
        os._exit(0)


def sweep(mark: str, rounds: int = 20) -> None:
    """Kills all marked processes, again and again until none is left: they may be starting others."""
    for _ in range(rounds):
        found = [pid for pid in marked(mark) if pid != os.getpid()]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked(mark: str) -> list[int]:
    """Process ids whose environment has the mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
