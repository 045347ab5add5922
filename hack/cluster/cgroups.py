"""The cluster's cgroups: every process of the cluster is in one, so finding, freezing and killing them needs no list of
process ids.

On cgroup v1 each hierarchy gets the same folders below `CGROUP`; on v2 there is one hierarchy. (Tested
on v1; the v2 branches follow the kernel's documentation, https://docs.kernel.org/admin-guide/cgroup-v2.html, and are
untested.) The machine's own root cgroups are never given to a kubelet and nothing is unmounted.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hack.support import within

from .output import ClusterError
from .settings import CGROUP

JOIN_AND_EXECUTE = 'for folder in $0; do echo 0 > "$folder/cgroup.procs" || exit 1; done; exec "$@"'
"""`sh -c JOIN_AND_EXECUTE "<folders>" command...`: becomes the command inside the cgroups; its children cannot escape
in between."""


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup file system: where it is, and the mount options that mount it again (v1) or None (v2)."""

    root: Path
    v1_options: str | None

    def has(self, controller: str) -> bool:
        return self.v1_options is None or controller in self.v1_options.split(",")


def parse_hierarchies(mounts: str) -> list[Hierarchy]:
    """The hierarchies in the text of /proc/mounts. A v2 hierarchy mounted in addition to v1 ones ("unified") has no
    controllers and is left out."""
    version_1, version_2 = [], []
    for line in mounts.splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup":
            named = [option for option in options.split(",") if option.startswith("name=")]
            controllers = [
                option for option in options.split(",") if option not in _GENERIC_OPTIONS and "=" not in option
            ]
            version_1.append(Hierarchy(Path(folder), ",".join(["none", *named] if named else controllers)))
        elif kind == "cgroup2":
            version_2.append(Hierarchy(Path(folder), None))
    return version_1 or version_2


def hierarchies() -> list[Hierarchy]:
    found = parse_hierarchies(Path("/proc/mounts").read_text())
    if not found or not any(item.has("freezer") for item in found):
        raise ClusterError(
            "no cgroup hierarchy with the freezer and pids controllers is mounted: the test cluster needs cgroup v1 "
            "or v2"
        )
    return found


def create(group: str = "") -> list[Path]:
    """Makes the cgroup `CGROUP/<group>`, such as `nodes/node-1`, in every hierarchy and returns its folders.

    Processes join it through JOIN_AND_EXECUTE.
    """
    return [_create_in(hierarchy, (CGROUP, *group.split("/"))) for hierarchy in hierarchies()]


def processes(group: str = "") -> set[int]:
    """The ids of every process in `CGROUP/<group>` and below it. The machine's view: call it outside the nodes."""
    found: set[int] = set()
    for folder, _, _ in os.walk(_primary(group)):
        with contextlib.suppress(FileNotFoundError):
            found.update(int(word) for word in Path(folder, "cgroup.procs").read_text().split())
    return found


def freeze(group: str = "") -> None:
    """Stops every process in the cgroup, and returns once all have stopped."""
    _set_frozen(group, frozen=True)


def thaw(group: str = "") -> None:
    _set_frozen(group, frozen=False)


def is_frozen(group: str) -> bool:
    folder = _primary(group)
    for file, text in (("freezer.state", "FROZEN"), ("cgroup.events", "frozen 1")):
        if (folder / file).exists():
            return text in (folder / file).read_text()
    return False


def kill(group: str = "") -> None:
    """Kills every process of the cgroup at once, as a power loss would: none sees another one die.

    Raises ClusterError when some stay.
    """
    folder = _primary(group)
    if not folder.exists():
        return
    if (folder / "cgroup.kill").exists():
        (folder / "cgroup.kill").write_text("1")
    else:
        freeze(group)
        for process in processes(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # On v1 a frozen process does not even die, and a cgroup below may be frozen on its own account.
        for below, _, _ in os.walk(folder):
            (Path(below) / "freezer.state").write_text("THAWED")
    _wait(lambda: not processes(group), f"processes of {folder} to end")


def remove(group: str = "") -> None:
    """Removes the cgroup and everything below it from every hierarchy, and what is empty then above it, up to `CGROUP`.
    Call `kill` first."""
    for hierarchy in hierarchies():
        top = hierarchy.root / CGROUP / group
        for folder in reversed([Path(folder) for folder, _, _ in os.walk(top)]):
            _wait(partial(_removed, folder), f"cgroup {folder} to become empty")
        while top != hierarchy.root / CGROUP and _removed(top.parent):
            top = top.parent


def give_controllers_to_children(folder: Path) -> None:
    """cgroup v2: children have only the controllers that their parent enables for them."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # one that cannot be enabled must not affect the others
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def exists() -> bool:
    return any((hierarchy.root / CGROUP).exists() for hierarchy in hierarchies())


_GENERIC_OPTIONS = {
    *("rw", "ro", "relatime", "noatime", "nosuid", "nodev", "noexec"),
    *("xattr", "seclabel", "clone_children", "none"),
}


def _primary(group: str) -> Path:
    root = next(hierarchy.root for hierarchy in hierarchies() if hierarchy.has("freezer"))
    return root / CGROUP / group


def _create_in(hierarchy: Hierarchy, names: tuple[str, ...]) -> Path:
    folder = hierarchy.root
    for name in names:
        parent, folder = folder, folder / name
        if hierarchy.v1_options is None:
            give_controllers_to_children(parent)
        folder.mkdir(exist_ok=True)
        if hierarchy.v1_options is not None and hierarchy.has(
            "cpuset"
        ):  # a v1 cpuset is empty at first and accepts no process
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((parent / file).read_text())
    return folder


def _set_frozen(group: str, frozen: bool) -> None:
    folder = _primary(group)
    if (folder / "freezer.state").exists():
        wanted = "FROZEN" if frozen else "THAWED"
        (folder / "freezer.state").write_text(wanted)
        _wait(lambda: (folder / "freezer.state").read_text().strip() == wanted, f"{folder} to be {wanted}")
    elif (folder / "cgroup.freeze").exists():
        (folder / "cgroup.freeze").write_text(str(int(frozen)))
        _wait(lambda: f"frozen {int(frozen)}" in (folder / "cgroup.events").read_text(), f"{folder} to freeze or thaw")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _wait(done: Callable[[], bool], what: str, timeout: float = 20.0) -> None:
    if not within(timeout, done, 0.02):
        raise ClusterError(f"waited {timeout:g} s for {what}")
