"""Reads the ledger that the worker processes of a chaos job wrote (script.py). audit.py judges it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

NEVER = float("inf")
SAMPLES = 480
"""Samples in an epoch of the script's data."""


@dataclasses.dataclass(frozen=True)
class Save:
    """A checkpoint that rank 0 was about to commit."""

    step: int
    digest: str
    began: float
    committed: float | None = None
    """When saving returned; None: the process ended before that, or the save was rejected. The checkpoint may exist
    nevertheless."""


@dataclasses.dataclass(frozen=True)
class Work:
    """One rank's share of a step."""

    step: int
    epoch: int
    samples: tuple[int, ...]


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
    """Its group's token; empty: it ended before it got one."""
    loaded: float | None = None
    """Rank 0: when it was about to read a checkpoint."""
    restored: tuple[int, str] | None = None
    """Rank 0: step and digest that it resumed from."""
    work: tuple[Work, ...] = ()
    done: tuple[tuple[int, float], ...] = ()
    """Rank 0: steps that all ranks completed, and when."""
    saves: tuple[Save, ...] = ()
    refused: tuple[str, ...] = ()
    ended: bool = False
    """All steps are done."""
    last_seen: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The worker processes that trained together, identified by the token that their rank 0 drew."""

    token: str
    processes: tuple[Process, ...]
    began: float
    """When rank 0 was about to read the newest checkpoint."""
    restored: tuple[int, str]
    done: tuple[tuple[int, float], ...] = ()
    saves: tuple[Save, ...] = ()
    refused: tuple[str, ...] = ()

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
        return self.done[0][1] if self.done else NEVER

    @property
    def last_done(self) -> float:
        return self.done[-1][1] if self.done else 0.0


def read_ledger(folder: Path) -> list[Process]:
    """Every process that wrote to `folder`, in the order in which they began. Empty if the folder does not exist."""
    found = (
        parse(path.read_text(encoding="utf-8", errors="replace").splitlines())
        for path in sorted(folder.glob("*.jsonl"))
    )
    return sorted((process for process in found if process), key=lambda process: process.began)


def parse(lines: Iterable[str]) -> Process | None:
    """The process that wrote the lines; None: it did not identify itself. Ignores an incomplete line."""
    process: Process | None = None
    lists: dict[str, list[Any]] = {"work": [], "done": [], "saves": [], "refused": []}
    changes: dict[str, Any] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            event, at = entry["event"], float(entry["at"])
        except (ValueError, KeyError, TypeError):
            continue
        if event == "begin":
            names = ("member", "process", "rank", "world", "round", "run", "fence")
            process = Process(began=at, **{name: entry[name] for name in names})
        else:
            _take(event, at, entry, lists, changes)
        changes["last_seen"] = at
    if process is None:
        return None
    changes |= {name: tuple(values) for name, values in lists.items()}
    return dataclasses.replace(process, **changes)


def _take(event: str, at: float, entry: dict[str, Any], lists: dict[str, list[Any]], changes: dict[str, Any]) -> None:
    if event == "work":
        lists["work"].append(Work(entry["step"], entry["epoch"], tuple(entry["samples"])))
    elif event == "done":
        lists["done"].append((entry["step"], at))
    elif event == "saving":
        lists["saves"].append(Save(entry["step"], entry["digest"], at))
    elif event == "saved":
        lists["saves"][-1] = dataclasses.replace(lists["saves"][-1], committed=at)
    elif event == "refused":
        lists["refused"].append(entry["error"])
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
                refused=first.refused,
            )
        )
    return sorted(groups, key=lambda group: group.began)
