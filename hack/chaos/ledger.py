"""Reads the ledger that worker processes wrote (script.py). audit.py and costs.py judge it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

NEVER = float("inf")
SAMPLES = 480
"""Samples in an epoch of the chaos suite's data."""


@dataclasses.dataclass(frozen=True)
class Save:
    """A checkpoint that rank 0 was about to commit."""

    step: int
    digest: str
    began: float
    committed: float | None = None
    """When saving returned; None: the process ended before that, or the save was rejected. The checkpoint may exist
    nevertheless."""


class Work(NamedTuple):
    """One rank's share of a step."""

    step: int
    epoch: int
    samples: tuple[int, ...]
    generation: str = ""
    """Empty where the process does not know it yet."""


class Done(NamedTuple):
    """A step that is part of the training."""

    step: int
    at: float
    generation: str = ""
    """One set of processes that train together: a group's token, a session's round, or a quorum."""
    world: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """One worker process. Times are seconds of the machine's monotonic clock."""

    member: str
    process: int
    """Its process ID inside its container."""
    rank: int
    world: int
    round: int = 0
    run: str = ""
    fence: str = ""
    began: float = 0.0
    token: str = ""
    """Its group's token; empty: it ended before it got one, or has a session."""
    loaded: float | None = None
    """Rank 0: when it was about to read a checkpoint."""
    restored: tuple[int, str] | None = None
    """Rank 0: step and digest that it resumed from."""
    work: tuple[Work, ...] = ()
    done: tuple[Done, ...] = ()
    saves: tuple[Save, ...] = ()
    """Rank 0."""
    ended: bool = False
    """All steps are done."""

    @property
    def name(self) -> str:
        """No two processes have the same, although process IDs are used again."""
        return f"{self.member}.{self.began}.{self.process}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The worker processes that trained together, identified by the token that their rank 0 drew."""

    token: str
    processes: tuple[Process, ...]
    began: float
    """When rank 0 was about to read the newest checkpoint."""
    restored: tuple[int, str]
    done: tuple[Done, ...] = ()
    saves: tuple[Save, ...] = ()

    @property
    def world(self) -> int:
        return self.processes[0].world

    @property
    def name(self) -> str:
        """Human-readable."""
        first = self.processes[0]
        return f"group {self.token} (round {first.round}, world {first.world}, fence {first.fence or 'none'})"

    @property
    def order(self) -> tuple[tuple[int, ...], float]:
        """Sort key; newer groups sort higher: by fencing token (run, generation of the etcd, round), then by start. A
        group that an old etcd still plans may begin after the one that has replaced it, and is still the older one."""
        fence = self.processes[0].fence
        return (tuple(int(part) for part in fence.split(".")) if fence else (), self.began)

    @property
    def committed(self) -> tuple[Save, ...]:
        return tuple(save for save in self.saves if save.committed is not None)

    @property
    def first_done(self) -> float:
        return self.done[0].at if self.done else NEVER

    @property
    def last_done(self) -> float:
        return self.done[-1].at if self.done else 0.0


class LedgerReader:
    """Reads a folder that grows: each time only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, tuple[int, _Lines]] = {}

    def read(self) -> list[Process]:
        """Every process that wrote to the folder, in the order in which they began. Empty if it does not exist."""
        for path in self._folder.glob("*.jsonl"):
            offset, lines = self._known.setdefault(path, (0, _Lines()))
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            complete = data[: data.rfind(b"\n") + 1]
            if complete:
                lines.take(complete.decode(errors="replace").splitlines())
                self._known[path] = (offset + len(complete), lines)
        found = [lines.process for _, lines in self._known.values() if lines.process is not None]
        return sorted(found, key=lambda process: process.began)


class _Lines:
    """What one process has written so far. `process` is None until it has identified itself; an incomplete line is
    ignored."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self._lists: dict[str, list[Any]] = {"work": [], "done": [], "saves": []}

    def take(self, lines: Iterable[str]) -> None:
        changes: dict[str, Any] = {}
        for line in lines:
            try:
                entry = json.loads(line)
                event, at = entry["event"], float(entry["at"])
            except (ValueError, KeyError, TypeError):
                continue
            if event == "begin":
                names = ("member", "process", "rank", "world", "round", "run", "fence")
                self.process = Process(began=at, **{name: entry[name] for name in names})
            else:
                self._take(event, at, entry, changes)
        if self.process is not None:
            changes |= {name: tuple(values) for name, values in self._lists.items()}
            self.process = dataclasses.replace(self.process, **changes)

    def _take(self, event: str, at: float, entry: dict[str, Any], changes: dict[str, Any]) -> None:
        saves = self._lists["saves"]
        if event == "work":
            share = Work(entry["step"], entry["epoch"], tuple(entry["samples"]), entry.get("generation", ""))
            self._lists["work"].append(share)
        elif event == "done":
            self._lists["done"].append(Done(entry["step"], at, entry.get("generation", ""), entry.get("world", 0)))
        elif event == "saving":
            saves.append(Save(entry["step"], entry["digest"], at))
        elif event == "saved":
            saves[-1] = dataclasses.replace(saves[-1], committed=at)
        elif event == "group":
            changes["token"] = entry["token"]
        elif event == "load":
            changes["loaded"] = at
        elif event == "restore":
            changes["restored"] = (entry["step"], entry["digest"])
        elif event == "end":
            changes["ended"] = True


def groups_of(processes: Sequence[Process]) -> list[Group]:
    """The groups that read a checkpoint, in that order."""
    together: dict[str, list[Process]] = {}
    for process in processes:
        if process.token:
            together.setdefault(process.token, []).append(process)
    groups = []
    for token, members in together.items():
        first = next((process for process in members if process.rank == 0), None)
        if first is None or first.loaded is None or first.restored is None:
            continue
        groups.append(
            Group(
                token=token,
                processes=tuple(sorted(members, key=lambda process: process.rank)),
                began=first.loaded,
                restored=first.restored,
                done=first.done,
                saves=first.saves,
            )
        )
    return sorted(groups, key=lambda group: group.began)
