"""The processes of pods, as seen from the machine that runs all nodes of the test cluster. Accesses only the cluster's
cgroups."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hack.cluster import cgroups


@dataclass(frozen=True)
class PodProcess:
    """A process of a pod. `inside`: its process ID in its container."""

    pid: int
    inside: int
    command: str

    def send(self, number: signal.Signals) -> None:
        """Does nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def processes_of(uid: str) -> list[PodProcess]:
    """Every process of the pod with this uid, on whichever node."""
    return [process for pid in sorted(cgroups.processes("nodes")) if (process := _read(pid, f"/pod{uid}/"))]


def all_commands() -> list[str]:
    """The command line of every process that runs on the nodes."""
    return [process.command for pid in cgroups.processes("nodes") if (process := _read(pid, "/"))]


def first_process(uid: str, what: str, is_it: Callable[[str], bool]) -> PodProcess:
    """The first process of a container of the pod, by its command. Raises LookupError."""
    found = [process for process in processes_of(uid) if process.inside == 1 and is_it(process.command)]
    if not found:
        raise LookupError(f"no {what} runs in the pod {uid}")
    return found[0]


@contextlib.contextmanager
def stopped(process: PodProcess) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


@contextlib.contextmanager
def frozen(group: str) -> Iterator[None]:
    """Stops every process of one of the cluster's cgroups, such as control-plane/coredns; they resume at the end."""
    cgroups.freeze(group)
    try:
        yield
    finally:
        cgroups.thaw(group)


@contextlib.contextmanager
def load(processes: int, seconds: float) -> Iterator[None]:
    """Burns CPU in the background, at low priority, for `seconds` at most, even if this process is killed."""
    children = [_burner(seconds) for _ in range(processes)]
    try:
        yield
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _burner(seconds: float) -> int:
    pid = os.fork()
    if pid == 0:
        os.nice(5)
        parent, end = os.getppid(), time.monotonic() + seconds
        while time.monotonic() < end and os.getppid() == parent:
            sum(range(100_000))
        os._exit(0)
    return pid


def _read(pid: int, below: str) -> PodProcess | None:
    """None if it is outside that part of the tree, or has ended."""
    folder = Path("/proc", str(pid))
    try:
        if below not in (folder / "cgroup").read_text():
            return None
        status = (folder / "status").read_text()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    inside = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")), str(pid))
    return PodProcess(pid, int(inside), command)
