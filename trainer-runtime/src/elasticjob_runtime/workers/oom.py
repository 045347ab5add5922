"""Whether the kernel's OOM killer was active: only the container's cgroup distinguishes its SIGKILL from any other.

cgroup v2 counts kills in `memory.events`, v1 in `memory.oom_control`, both in a line `oom_kill N`.
"""

from __future__ import annotations

import contextlib
import os.path
from pathlib import Path


class OomKills:
    """OOM kills in this process's cgroup, which is its container's."""

    def __init__(self, file: Path | None = None) -> None:
        """`file`: the counter; None: this process's."""
        self._file = file or _own_file()
        self._before = self._count()

    def reset(self) -> None:
        """Ignores kills up to now."""
        self._before = self._count()

    def happened(self) -> bool | None:
        """Whether the kernel killed a process since `reset`; None: there is no counter."""
        before, count = self._before, self._count()
        return count > before if before is not None and count is not None else None

    def _count(self) -> int | None:
        with contextlib.suppress(OSError):
            return kills(self._file.read_text()) if self._file is not None else None
        return None


def kills(text: str) -> int | None:
    """The number in memory.events (v2) or memory.oom_control (v1); None if there is none (v1 before Linux 4.13).

    >>> kills("low 0\\noom 3\\noom_kill 2\\n")
    2
    """
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdigit():
            return int(number)
    return None


def counting_file(cgroups: str, mounts: str) -> Path | None:
    """The counter of a process with these /proc/PID/cgroup and /proc/PID/mountinfo; None: there is no memory
    controller."""
    return cgroup_file(cgroups, mounts, "memory", "memory.oom_control", "memory.events")


def cgroup_file(cgroups: str, mounts: str, controller: str, file_of_1: str, file_of_2: str) -> Path | None:
    """A file of the controller's cgroup, with its name in v1 and in v2, of a process with these /proc/PID/cgroup and
    /proc/PID/mountinfo; None: there is no such controller.

    A container sees its own cgroup at the root of the mount. Without a cgroup namespace, only its part of the tree is
    mounted.
    """
    version_1 = _path(cgroups, controller)
    if version_1 is not None:
        folder = _folder(mounts, "cgroup", version_1, controller)
        return folder / file_of_1 if folder is not None else None
    version_2 = _path(cgroups, "")
    folder = _folder(mounts, "cgroup2", version_2, controller) if version_2 is not None else None
    return folder / file_of_2 if folder is not None else None


def _path(cgroups: str, controller: str) -> str | None:
    """This process's cgroup in the hierarchy with this controller, or in that of v2 if it is empty."""
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _folder(mounts: str, kind: str, path: str, controller: str) -> Path | None:
    for line in mounts.splitlines():
        fields, _, described = line.partition(" - ")
        file_system, _, options = [*described.split(" ", 2), "", ""][:3]
        if file_system == kind and (kind == "cgroup2" or controller in options.split(",")):
            root, point = fields.split(" ")[3:5]
            below = os.path.relpath(path, root)
            elsewhere = ".." in path.split("/") or below.startswith("..")
            return Path(point) if elsewhere else Path(point, below)
    return None


def _own_file() -> Path | None:
    with contextlib.suppress(OSError):
        return counting_file(*own_cgroups())
    return None


def own_cgroups() -> tuple[str, str]:
    """(/proc/self/cgroup, /proc/self/mountinfo). Raises OSError."""
    return Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()
