"""The few Linux calls that Python's standard library has no name for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when `parent` (its parent now) dies, however that dies. Exits at once where it is
    dead already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper() -> None:
    """Orphans among the descendants of this process become its children, so that it can wait for them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def catches(pid: int, number: int) -> bool:
    """Has this process a handler of its own for the signal `number`? False where it has gone."""
    with contextlib.suppress(OSError):
        return caught(Path(f"/proc/{pid}/status").read_text(errors="replace"), number)
    return False


def caught(status: str, number: int) -> bool:
    """The same, from the text of /proc/PID/status.

    >>> caught("Name: python\nSigCgt:\t0000000000004002\n", signal.SIGTERM)
    True
    """
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def children() -> list[int]:
    """Process ids of this process's children."""
    pids: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            pids += [int(pid) for pid in (task / "children").read_text().split()]
    return pids


def open_files() -> list[str]:
    """Paths of what this process has open."""
    found: list[str] = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return found


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def threads() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/task"))


def die_alone() -> None:
    """Takes `die_with_parent` back."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def living_children() -> list[int]:
    """Children of this process that have not ended."""
    found = []
    for pid in children():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(pid)
    return found


def maps_semaphores() -> bool:
    """Whether this process has a POSIX semaphore: glibc keeps each in a file of shared memory, which may have no name
    any more."""
    return "/dev/shm/sem." in Path("/proc/self/maps").read_text()  # noqa: S108 - looked at, not used


def set_command_line(command: Sequence[str]) -> None:
    """What `ps`, `pgrep -f` and /proc/PID/cmdline show of this process, as setproctitle(3) does it: one text over the
    arguments it was started with, cut to their length. The kernel takes it for one when the last byte is not 0."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        start, end = int(fields[45]), int(fields[46])
        size = end - start
        if start <= 0 or size < 3:
            return
        text = os.fsencode(" ".join(command))[: size - 2]
        ctypes.memmove(start, text.ljust(size - 1, b"\0") + b".", size)
