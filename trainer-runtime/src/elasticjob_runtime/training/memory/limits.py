"""How much memory this process's container has left. Standard library only."""

from __future__ import annotations

import contextlib
import pathlib

_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Of cgroup v2 and v1: the limit, and what is used."""


def free_memory(root: pathlib.Path = pathlib.Path("/")) -> int | None:
    """Bytes that can be used before something is killed; None: unknown. Of the machine, and of the container as it sees
    itself."""
    found = [value for value in (_of_machine(root), _of_container(root)) if value is not None]
    return min(found, default=None)


def _of_machine(root: pathlib.Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _of_container(root: pathlib.Path) -> int | None:
    for limit, used in _FILES:
        folder = root / "sys/fs/cgroup"
        with contextlib.suppress(OSError, ValueError):
            most = int((folder / limit).read_text())  # v2 says "max" if there is no limit
            return max(0, most - int((folder / used).read_text()) + _cache(folder / used))
    return None


def _cache(used: pathlib.Path) -> int:
    """What the kernel drops first when memory gets scarce: cached files."""
    with contextlib.suppress(OSError, ValueError):
        for line in (used.parent / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0
