"""What worker processes log of their steps, and the figures that follow from it. Pure. Times are Unix time, s.

A line `t STEP GENERATION SAMPLE,SAMPLE` is written when a process begins a step with its share of the batch, and
`c TIME STEP GENERATION WORLD` when the step is part of the training. A generation is one set of processes that train
together: a round, or a quorum. It may be unknown (`-`) when a step begins.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Sequence

UNKNOWN = "-"
ENDED = 5.0
"""s without a step after which training counts as ended."""


@dataclasses.dataclass(frozen=True)
class Begun:
    process: str
    step: int
    generation: str
    samples: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Commit:
    process: str
    time: float
    step: int
    generation: str
    world: int


@dataclasses.dataclass
class Ledger:
    """Grows while the job runs."""

    begun: list[Begun] = dataclasses.field(default_factory=list)
    commits: list[Commit] = dataclasses.field(default_factory=list)

    def read(self, process: str, text: str) -> None:
        """Adds complete lines of one process's log."""
        for line in text.splitlines():
            kind, *words = line.split(" ")
            if kind == "t":
                samples = tuple(words[2].split(",")) if words[2] else ()
                self.begun.append(Begun(process, int(words[0]), words[1], samples))
            elif kind == "c":
                self.commits.append(Commit(process, float(words[0]), int(words[1]), words[2], int(words[3])))


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


def samples_lost(ledger: Ledger) -> int:
    """Samples that a process has begun with, and that are in no committed step: they are missing in the training.

    What the processes are doing right now does not count.
    """
    committed_here = {(commit.process, commit.step) for commit in ledger.commits}
    committed = {(commit.generation, commit.step) for commit in ledger.commits}
    newest = {begun.process: begun for begun in ledger.begun}
    alive = _newest_generation(ledger.commits)
    taken: set[str] = set()
    missing: set[str] = set()
    for begun in ledger.begun:
        if (begun.process, begun.step) in committed_here or (begun.generation, begun.step) in committed:
            taken.update(begun.samples)
        elif newest[begun.process] is not begun or begun.process not in alive:
            missing.update(begun.samples)
    return len(missing - taken)


def _newest_generation(commits: Sequence[Commit]) -> set[str]:
    """The processes in it."""
    if not commits:
        return set()
    newest = max(commits, key=lambda commit: commit.time).generation
    return {commit.process for commit in commits if commit.generation == newest}
