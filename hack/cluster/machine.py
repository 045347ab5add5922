"""The one cluster of this machine: its owner, the lock on it, and how to remove every trace of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from . import cgroups, network
from .output import ClusterError, run
from .programs import programs_folder
from .settings import CGROUP, CHECKOUT, DOT_CLUSTER, MODULE_FOLDER, RECORD, SHARED_DIRECTORY, state_folder

LOCK_SECONDS = 300.0
NETWORK_NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class Record:
    """The machine's cluster, as stored in RECORD while a cluster or remains of one exist."""

    checkout: str
    state: str
    version: str
    """Changes with the programs and with this package: a cluster of another version is not kept."""
    complete: bool
    """False while it is being created."""

    def write(self) -> None:
        aside = RECORD.with_suffix(".part")
        aside.write_text(json.dumps(asdict(self)))
        aside.rename(RECORD)


def read_record() -> Record | None:
    """The cluster on this machine; None if there is none, or its record is unreadable."""
    try:
        return Record(**json.loads(RECORD.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def new_record(complete: bool) -> Record:
    digest = hashlib.sha256(str(programs_folder()).encode())
    for file in sorted(MODULE_FOLDER.iterdir()):
        if file.suffix in (".py", ".yaml"):
            digest.update(file.read_bytes())
    return Record(str(CHECKOUT), str(state_folder()), digest.hexdigest(), complete)


def is_root() -> bool:
    return os.geteuid() == 0


def require_root() -> None:
    if not is_root():
        raise ClusterError(
            "nodes need root (network namespaces, cgroups, mounts): run this as root; ControlPlane and Etcd work "
            "without"
        )


@contextlib.contextmanager
def turn(timeout: float = LOCK_SECONDS) -> Iterator[None]:
    """One process at a time changes the cluster. The lock is a name that the kernel frees with the process, so none is
    ever stale.

    Raises ClusterError after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind("\0elasticjob-cluster")
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise ClusterError(f"another process has been changing the cluster for {timeout:g} s") from error
                time.sleep(0.1)
        yield


def traces() -> list[str]:
    """Descriptions of everything that belongs to a cluster on this machine, running or not."""
    found = [f"network namespace {name}" for name in network.namespaces()]
    found += [f"process {process}" for process in sorted(cgroups.processes())]
    found += [f"cgroups {CGROUP}"] if cgroups.exists() else []
    found += [str(path) for path in (RECORD, SHARED_DIRECTORY) if path.exists()]
    return found


def remove_everything() -> None:
    """Removes every trace of a cluster, whichever checkout started it and however it ended. Only its logs stay."""
    record = read_record()
    cgroups.kill()
    cgroups.remove()
    network.remove_all()
    _remove_empty_namespace_folder()
    run(["rm", "-rf", SHARED_DIRECTORY])
    for state in {state_folder(), *([Path(record.state)] if record else [])}:
        for path in state.glob("*"):
            if path.name != "logs":
                run(["rm", "-rf", path])
    for checkout in {CHECKOUT, *([Path(record.checkout)] if record else [])}:
        for name in ("kubeconfig", "nodes"):
            (checkout / DOT_CLUSTER.name / name).unlink(missing_ok=True)
    RECORD.unlink(missing_ok=True)


def _remove_empty_namespace_folder() -> None:
    """`ip netns add` mounts this folder on itself the first time; undone when no namespace is left."""
    if NETWORK_NAMESPACES.is_dir() and not any(NETWORK_NAMESPACES.iterdir()):
        while str(NETWORK_NAMESPACES) in _mount_points():
            run(["umount", NETWORK_NAMESPACES])
        NETWORK_NAMESPACES.rmdir()


def _mount_points() -> list[str]:
    return [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
