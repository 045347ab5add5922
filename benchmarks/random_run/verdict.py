"""What a random run cost, and whether it was the training that an undisturbed run is. Pure."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.recovery.ledger import Begun, Commit


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """The steps of the training as it became in the end, without what was interrupted or taken again."""

    samples: Mapping[int, tuple[str, ...]]
    """Of each step, sorted."""
    repeated: int
    """Steps that were committed in more than one world."""
    first: Sequence[float]
    """When each step was first committed, in the order of the steps."""


def history(begun: Iterable[Begun], commits: Iterable[Commit]) -> History:
    """A step belongs to the last world in which it was committed. All ranks of that world have begun it."""
    worlds: dict[int, set[int]] = collections.defaultdict(set)
    first: dict[int, float] = {}
    for commit in commits:
        worlds[commit.step].add(int(commit.generation))
        first[commit.step] = min(commit.time, first.get(commit.step, commit.time))
    samples: dict[int, list[str]] = {step: [] for step in worlds}
    for one in begun:
        if one.step in worlds and int(one.generation) == max(worlds[one.step]):
            samples[one.step] += one.samples
    return History(
        samples={step: tuple(sorted(found)) for step, found in samples.items()},
        repeated=sum(len(found) > 1 for found in worlds.values()),
        first=[first[step] for step in sorted(first)],
    )


def lost_and_repeated(found: History, expected: History) -> tuple[int, int]:
    """(samples that are missing, samples that are there without being expected), over all steps."""
    lost = repeated = 0
    for step in found.samples.keys() | expected.samples.keys():
        one = collections.Counter(found.samples.get(step, ()))
        other = collections.Counter(expected.samples.get(step, ()))
        lost += (other - one).total()
        repeated += (one - other).total()
    return lost, repeated


def stalls(first: Iterable[float], faults: Sequence[float]) -> list[float]:
    """What each fault cost: the longest pause between two steps, less the usual time between two steps, s.

    A pause counts for the last fault before it lasted longer than usual.
    """
    pauses = list(itertools.pairwise(sorted(first)))
    if not pauses:
        return []
    usual = statistics.median(after - before for before, after in pauses)
    longest = [usual] * len(faults)
    for before, after in pauses:
        index = bisect.bisect_right(faults, before + usual) - 1
        if index >= 0:
            longest[index] = max(longest[index], after - before)
    return [pause - usual for pause in longest]


def difference(one: Any, other: Any, where: str = "state") -> str:
    """Where two states differ in a bit. Empty: nowhere."""
    if type(one) is not type(other):
        return f"{where}: {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{where}: {sorted(map(str, one))} and {sorted(map(str, other))}"
        pairs = [(f"{where}.{key}", one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{where}: {len(one)} and {len(other)} items"
        pairs = [(f"{where}[{index}]", *both) for index, both in enumerate(zip(one, other, strict=True))]
    else:
        same = one.equal(other) if hasattr(one, "equal") else one == other
        return "" if same else f"{where}: {one} and {other}"
    return next((found for name, first, second in pairs if (found := difference(first, second, name))), "")
