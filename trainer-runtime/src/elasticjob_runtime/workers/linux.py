"""Linux calls and /proc files that Python's standard library does not cover."""

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
    """Makes the kernel kill this process when `parent`, its current parent, dies. Exits if the parent is dead
    already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper() -> None:
    """Makes orphaned descendants of this process its children, so that it can reap them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def catches(pid: int, number: int) -> bool:
    """Whether process `pid` has a handler for the signal `number`. False if the process is gone."""
    with contextlib.suppress(OSError):
        return caught(Path(f"/proc/{pid}/status").read_text(errors="replace"), number)
    return False


def caught(status: str, number: int) -> bool:
    r"""Like `catches`, given the text of /proc/PID/status.

    >>> caught("Name: python\nSigCgt:\t0000000000004002\n", signal.SIGTERM)
    True
    """
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def stat_fields(pid: int | str) -> list[str]:
    """Of /proc/PID/stat, from the state on. Raises OSError."""
    return Path(f"/proc/{pid}/stat").read_text(errors="surrogateescape").rpartition(") ")[2].split()


def stop_signal(pid: int) -> int:
    """The signal that has stopped process `pid`, a child of this process; 0: it is not stopped by a signal, or is
    gone."""
    with contextlib.suppress(OSError):
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return found.si_status if found is not None else 0
    return 0


def children() -> list[int]:
    """Process ids of this process's children, zombies included."""
    pids: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            pids += [int(pid) for pid in (task / "children").read_text().split()]
    return pids


def open_files() -> list[str]:
    """Paths of the files that this process has open."""
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
    """How many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def outlive_parent() -> None:
    """Reverts `die_with_parent`."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def living_children() -> list[int]:
    """Children of this process that are not zombies."""
    found = []
    for pid in children():
        with contextlib.suppress(OSError):
            if stat_fields(pid)[0] != "Z":
                found.append(pid)
    return found


def maps_semaphores() -> bool:
    """Whether this process has a POSIX semaphore. glibc maps each from a file in shared memory, which may have been
    unlinked."""
    return "/dev/shm/sem." in Path("/proc/self/maps").read_text()  # noqa: S108 - compared, not used


def set_command_line(command: Sequence[str]) -> None:
    """Sets what `ps`, `pgrep -f` and /proc/PID/cmdline show of this process.

    As setproctitle(3) does, this overwrites the arguments the process was started with, and is cut to their length. The
    kernel takes them for one string if the last byte is not 0.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = stat_fields("self")
        start, end = int(fields[45]), int(fields[46])
        size = end - start
        if start <= 0 or size < 3:
            return
        text = os.fsencode(" ".join(command))[: size - 2]
        ctypes.memmove(start, text.ljust(size - 1, b"\0") + b".", size)
