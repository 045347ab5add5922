"""Whether the kernel has killed for lack of memory: only the container's cgroup tells such a SIGKILL from any other.

cgroup v2 counts in `memory.events`, v1 in `memory.oom_control`; both in a line `oom_kill N`.
"""

from __future__ import annotations

import contextlib
import os.path
from pathlib import Path


class OomKills:
    """The kills in this process's own cgroup, which is its container's."""

    def __init__(self, file: Path | None = None) -> None:
        """`file`: what counts; None: that of this process."""
        self._file = file or _own_file()
        self._before = self._count()

    def begin(self) -> None:
        """What was killed until now is nobody's business any more."""
        self._before = self._count()

    def happened(self) -> bool:
        """Has the kernel killed somebody since `begin`? False where it does not say."""
        before, count = self._before, self._count()
        return before is not None and count is not None and count > before

    def _count(self) -> int | None:
        with contextlib.suppress(OSError):
            return kills(self._file.read_text()) if self._file is not None else None
        return None


def kills(text: str) -> int | None:
    """The number in memory.events (v2) or memory.oom_control (v1); None: it has none (v1 before Linux 4.13).

    >>> kills("low 0\\noom 3\\noom_kill 2\\n")
    2
    """
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdigit():
            return int(number)
    return None


def counting_file(cgroups: str, mounts: str) -> Path | None:
    """The file that counts for a process with these /proc/PID/cgroup and /proc/PID/mountinfo; None: no memory
    controller is to be seen.

    A container sees its own cgroup at the root of the mount, or, without a cgroup namespace, a mount of that part of
    the tree only.
    """
    version_1 = _path(cgroups, "memory")
    if version_1 is not None:
        folder = _folder(mounts, "cgroup", version_1)
        return folder / "memory.oom_control" if folder is not None else None
    version_2 = _path(cgroups, "")
    folder = _folder(mounts, "cgroup2", version_2) if version_2 is not None else None
    return folder / "memory.events" if folder is not None else None


def _path(cgroups: str, controller: str) -> str | None:
    """Of this process in the hierarchy with this controller; "": in that of v2."""
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _folder(mounts: str, kind: str, path: str) -> Path | None:
    for line in mounts.splitlines():
        fields, _, described = line.partition(" - ")
        file_system, _, options = [*described.split(" ", 2), "", ""][:3]
        if file_system == kind and (kind == "cgroup2" or "memory" in options.split(",")):
            root, point = fields.split(" ")[3:5]
            below = os.path.relpath(path, root)
            elsewhere = ".." in path.split("/") or below.startswith("..")
            return Path(point) if elsewhere else Path(point, below)
    return None


def _own_file() -> Path | None:
    with contextlib.suppress(OSError):
        return counting_file(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    return None
