"""What worker processes do while they make no progress, as seen from outside: /proc first, then torch's flight
recorders, and stacks last.

What is read of /proc needs no privilege, and changes nothing. A stack is asked for by a signal (faulthandler), which
makes some calls in C return early (`sleep`, `poll`, a `recv` with a timeout). So a process gets it only if it does
nothing anyway, and no more once it is known to wait for others. One without a handler would die, and gets none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from elasticjob_runtime.agent import recorders
from elasticjob_runtime.contract.collectives import Calls
from elasticjob_runtime.event_loop import start_thread
from elasticjob_runtime.membership.culprit import Activity, RankEvidence, Stack, main_stack
from elasticjob_runtime.training import auto_progress, flight_recorder
from elasticjob_runtime.workers import linux

T = TypeVar("T")

WATCH_SECONDS = 3.0
STACKS_SECONDS = 2.0
"""s that processes have to write their stacks, on a busy machine. It takes a millisecond."""
RECORDER_SECONDS = 1.0
"""s that processes have to answer for their flight recorders, of each kind. It takes 1 ms, or 140 with 2,000
collectives in it."""
LOOK_SECONDS = 0.1
"""s between two looks at whether they have."""

MAX_STACK = 16 * 1024
"""Bytes of one process's stacks that are kept: the end, which has the main thread."""

MAX_CHILDREN = 256
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A worker process of this agent that makes no progress."""

    rank: int
    local_rank: int
    pid: int
    error_file: str


class Investigation:
    """Of one hang. Not thread-safe: use it on the agent's event loop only. Times are monotonic, s."""

    def __init__(self, suspects: Iterable[Suspect], now: float, known: Mapping[int, str], since_ns: int = 0) -> None:
        """`known`: the stacks, by rank, that were asked for earlier in this hang. `since_ns`: when the processes began
        in this round, Unix time, ns."""
        self._suspects = tuple(suspects)
        self._before = {process.rank: _activity_of(process.pid) for process in self._suspects}
        sockets = {suspect.rank: flight_recorder.socket_file(suspect.error_file) for suspect in self._suspects}
        self._recorders = Question[Mapping[int, Calls]](
            lambda: recorders.ask(sockets, RECORDER_SECONDS, since_ns), 2 * RECORDER_SECONDS, {}
        )
        self._places: Question[Mapping[int, Stack | None]] | None = None
        """What the stacks tell. It reads the script's file, which may be on a file system that hangs."""
        self._evidence: dict[int, RankEvidence] = {}
        self._sizes: dict[int, int] = {}
        """Of the files to which processes write their stacks now, by rank, before."""
        self._give_up_at = 0.0
        self.stacks = dict(known)
        """By rank, of those that have written them."""
        self.due = now + WATCH_SECONDS

    def tick(self, now: float) -> dict[int, RankEvidence] | None:
        """What was found, by rank; None: not yet."""
        if now < self.due:
            return None
        if not self._recorders.over(now):
            self.due = now + LOOK_SECONDS
            return None
        if not self._evidence:
            self._evidence = {process.rank: self._look_at(process) for process in self._suspects}
            self._give_up_at = now + STACKS_SECONDS
            for suspect in self._suspects:
                self._ask(suspect)
            if self._sizes:
                self.due = now + LOOK_SECONDS
                return None
        if not self._all_written() and now < self._give_up_at:
            self.due = now + LOOK_SECONDS
            return None
        if self._places is None:
            texts = dict(self.stacks)
            self._places = Question(lambda: {rank: _stack(text) for rank, text in texts.items()}, STACKS_SECONDS, {})
        if not self._places.over(now):
            self.due = now + LOOK_SECONDS
            return None
        places = self._places.answer
        return {rank: dataclasses.replace(found, stack=places.get(rank)) for rank, found in self._evidence.items()}

    def _all_written(self) -> bool:
        """Whether those that were asked have written their stacks, and write no more."""
        before = dict(self.stacks)
        for suspect in self._suspects:
            path = auto_progress.stacks_file(suspect.error_file)
            if suspect.rank in self._sizes and (text := written_stacks(path, self._sizes[suspect.rank])):
                self.stacks[suspect.rank] = text
        return self._sizes.keys() <= self.stacks.keys() and before == self.stacks

    def _look_at(self, suspect: Suspect) -> RankEvidence:
        before, after = self._before[suspect.rank], _activity_of(suspect.pid)
        return RankEvidence(
            state=_fields(suspect.pid)[0],
            kernel=_read(f"/proc/{suspect.pid}/wchan").strip("0"),
            device=_waits_for_device(suspect.pid),
            activity=Activity(
                cpu_ms=max(0, after.cpu_ms - before.cpu_ms),
                switches=max(0, after.switches - before.switches),
                bytes=max(0, after.bytes - before.bytes),
            ),
            accelerator=_uses_accelerator(suspect.pid),
            resends=_resends(suspect.pid),
            calls=self._recorders.answer.get(suspect.rank),
        )

    def _ask(self, suspect: Suspect) -> None:
        """Asks a process that does nothing for its stacks, once. One that is stopped or in the kernel cannot answer."""
        found = self._evidence[suspect.rank]
        if suspect.rank in self.stacks or not found.does_nothing:
            return
        size = request_stacks(suspect.pid, auto_progress.stacks_file(suspect.error_file))
        if size is not None:
            self._sizes[suspect.rank] = size


class Question(Generic[T]):
    """Work in a thread, because it may take long or never end. `now`: monotonic, s."""

    def __init__(self, work: Callable[[], T], seconds: float, unanswered: T) -> None:
        """`seconds`: how long to wait for it; `unanswered`: the answer if that was too short."""
        self._work = work
        self._seconds = seconds
        self._give_up_at: float | None = None
        self._done = False
        self.answer = unanswered

    def over(self, now: float) -> bool:
        """Begins at the first call. True: it is done, or had enough time."""
        if self._give_up_at is None:
            self._give_up_at = now + self._seconds
            self._done = not start_thread(self._run, "hang-question")
        return self._done or now >= self._give_up_at

    def _run(self) -> None:
        try:
            self.answer = self._work()
        finally:
            self._done = True


def request_stacks(pid: int, path: str) -> int | None:
    """Asks a process to write its stacks to its file at `path`. Returns the size of the file before; None: it cannot,
    or would die of the signal."""
    if _fields(pid)[0] in "TtDZX?" or not linux.catches(pid, auto_progress.STACKS_SIGNAL):
        return None
    if os.path.realpath(path) not in _links(pid):
        return None
    with contextlib.suppress(OSError):
        size = os.path.getsize(path)
        os.kill(pid, auto_progress.STACKS_SIGNAL)
        return size
    return None


def written_stacks(path: str, size: int) -> str:
    """What has been written to the file since it had `size` bytes; not all of it may be there yet."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(size)
        return file.read()[-MAX_STACK:].decode(errors="replace")
    return ""


def _stack(text: str) -> Stack | None:
    """None: it does not tell. `work.wait()` of a collective that the script has begun earlier is a call in C: only the
    script's own line says that it waits for others."""
    stack = main_stack(text)
    if stack is None or stack.collective:
        return stack
    newest = re.search(r'\n  File "(.*)", line (\d+)', text[text.rfind("hread 0x") :])
    line = linecache.getline(newest[1], int(newest[2])) if newest else ""
    return None if "wait" in line else stack


def _activity_of(pid: int) -> Activity:
    """Of the process and its children, since their start."""
    known = [_own_activity(child) for child in (pid, *_children(pid))]
    return Activity(
        cpu_ms=sum(activity.cpu_ms for activity in known),
        switches=sum(activity.switches for activity in known),
        bytes=sum(activity.bytes for activity in known),
    )


def _waits_for_device(pid: int) -> bool:
    """Whether a child process, or a thread other than the main one, is in the kernel (state D)."""
    threads = [(process, task) for process in (pid, *_children(pid)) for task in _listed(f"/proc/{process}/task")]
    return any(
        _read(f"/proc/{process}/task/{task}/stat").rpartition(") ")[2][:1] == "D"
        for process, task in threads
        if task != str(pid)
    )


def _own_activity(pid: int) -> Activity:
    fields = _fields(pid)
    switches = re.findall(r"ctxt_switches:\s+(\d+)", _read(f"/proc/{pid}/status"))  # of the main thread
    moved = re.findall(r"^[rw]char: (\d+)", _read(f"/proc/{pid}/io"), re.MULTILINE)
    return Activity(
        cpu_ms=round((int(fields[11]) + int(fields[12])) * TICK_MS) if len(fields) > 12 else 0,
        switches=sum(map(int, switches)),
        bytes=sum(map(int, moved)),
    )


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, from the state on; the state is `?` if the process is gone."""
    return _read(f"/proc/{pid}/stat").rpartition(") ")[2].split() or ["?"]


def _children(pid: int) -> list[int]:
    """All descendants."""
    found, parents = list[int](), [pid]
    while parents and len(found) < MAX_CHILDREN:
        parent = parents.pop()
        texts = [_read(f"/proc/{parent}/task/{task}/children") for task in _listed(f"/proc/{parent}/task")]
        new = [int(child) for text in texts for child in text.split()]
        found += new
        parents += new
    return found[:MAX_CHILDREN]


def _uses_accelerator(pid: int) -> bool:
    return any(path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/")) for path in _links(pid))


def _links(pid: int) -> list[str]:
    found: list[str] = []
    for fd in _listed(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


ESTABLISHED, RETRANSMITS = "01", "01"
"""State and timer of a connection in /proc/net/tcp."""
MIN_TRIES = 2


def _resends(pid: int) -> frozenset[tuple[str, str]]:
    """(own, peer) addresses of the process's connections on which data is sent again and again."""
    own = {path[8:-1] for path in _links(pid) if path.startswith("socket:[")}
    found = set()
    for line in _read(f"/proc/{pid}/net/tcp").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[9] not in own or fields[3] != ESTABLISHED:
            continue
        if fields[5].startswith(RETRANSMITS) and int(fields[6], 16) >= MIN_TRIES:
            found.add((address_of(fields[1]), address_of(fields[2])))
    return frozenset(found)


def address_of(text: str) -> str:
    """Of an end of a connection in /proc/net/tcp.

    >>> address_of("0100007F:1F90")
    '127.0.0.1'
    """
    return socket.inet_ntoa(bytes.fromhex(text.partition(":")[0])[::-1])


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="surrogateescape")
    return ""
