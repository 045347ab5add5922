"""What a change costs, from a ledger: pauses, steps and samples lost. Pure. Times are s of the monotonic clock."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Sequence

from hack.chaos.ledger import Process

ENDED = 5.0
"""s without a step after which training counts as ended."""


@dataclasses.dataclass(frozen=True)
class Commit:
    """A step that is part of the training, as one process has recorded it."""

    process: str
    time: float
    step: int
    generation: str
    world: int


@dataclasses.dataclass(frozen=True)
class Change:
    """What one change cost."""

    first_step: float
    """s from the event to the next step of the processes that train then."""
    stall: float
    """The longest time between the last step of one generation and the first of the next until then, less the usual
    time between two steps, s. Slow steps in between, while a joiner imports torch, are not the change's."""
    steps_lost: int
    """Steps that were part of the training, and had to be taken again."""
    world: int


def commits_of(processes: Iterable[Process]) -> list[Commit]:
    return [
        Commit(process.name, done.at, done.step, done.generation, done.world)
        for process in processes
        for done in process.done
    ]


def newest_world(processes: Sequence[Process]) -> list[Process]:
    """The processes of the newest generation, if all of them have taken a step in it."""
    trained = [process for process in processes if process.done]
    if not trained:
        return []
    newest = max((process.done[-1] for process in trained), key=lambda done: done.at)
    found = [process for process in trained if process.done[-1].generation == newest.generation]
    return found if len(found) == newest.world else []


def usual_step(commits: Iterable[Commit]) -> float:
    """The median time between two steps of a process, s."""
    by_process: dict[str, list[float]] = {}
    for commit in commits:
        by_process.setdefault(commit.process, []).append(commit.time)
    gaps = [after - before for times in by_process.values() for before, after in itertools.pairwise(sorted(times))]
    return statistics.median(gaps) if gaps else 0.0


def change(
    commits: Sequence[Commit], event: float, *, world: int | None = None, victims: Collection[str] = ()
) -> Change | None:
    """From the event to the first step of a later generation, of this size if given. None: there was none.

    victims: processes that the event ended; a step that only they have committed is not lost with them.
    """
    known = {commit.generation for commit in commits if commit.time <= event}
    later = [
        commit
        for commit in commits
        if commit.time > event and commit.generation not in known and world in (None, commit.world)
    ]
    if not later:
        return None
    first = min(later, key=lambda commit: commit.time)
    latest = max((commit for commit in commits if commit.time <= event), key=lambda commit: commit.time, default=first)
    between = {commit.generation for commit in commits if event < commit.time < first.time} | {latest.generation}
    before = [commit for commit in commits if commit.generation in between - {first.generation}]
    reached = max((commit.step for commit in before if commit.process not in victims), default=0)
    resumed = min(commit.step for commit in later if commit.generation == first.generation)
    return Change(
        first_step=first.time - event,
        stall=_pause_at_change(commits, event, first.time) - usual_step(commits),
        steps_lost=max(0, reached - resumed + 1),
        world=first.world,
    )


def _pause_at_change(commits: Iterable[Commit], event: float, end: float) -> float:
    course = sorted((commit for commit in commits if commit.time <= end), key=lambda commit: commit.time)
    pauses = [
        after.time - before.time
        for before, after in itertools.pairwise(course)
        if after.time > event and after.generation != before.generation
    ]
    return max(pauses, default=0.0)


def longest_pause(commits: Iterable[Commit], start: float, end: float) -> float:
    """The longest time between two steps of the training, s; infinite if there is none in the last ENDED s."""
    times = [start, *sorted(commit.time for commit in commits if start < commit.time <= end)]
    if end - times[-1] > ENDED:
        return math.inf
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


def samples_lost(processes: Sequence[Process]) -> int:
    """Samples that a process has begun with, and that are in no committed step: they are missing in the training.

    What the processes are doing right now does not count.
    """
    committed = {(done.generation, done.step) for process in processes for done in process.done}
    last = max((process.done[-1] for process in processes if process.done), key=lambda done: done.at, default=None)
    taken: set[tuple[int, int]] = set()
    missing: set[tuple[int, int]] = set()
    for process in processes:
        here = {done.step for done in process.done}
        alive = bool(last and process.done and any(done.generation == last.generation for done in process.done))
        for work in process.work:
            samples = {(work.epoch, sample) for sample in work.samples}
            if work.step in here or (work.generation, work.step) in committed:
                taken |= samples
            elif work is not process.work[-1] or not alive:
                missing |= samples
    return len(missing - taken)
