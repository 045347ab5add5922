"""Random schedules: faults one on top of the other, drawn from a seed, so that what was found once can be run again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Deed:
    """A fault that begins `at` s after the start and is taken back `lasts` s later."""

    at: float
    fault: str
    lasts: float


def draw(seed: int, seconds: float, names: Sequence[str], every: float = 3.0) -> tuple[Deed, ...]:
    """Deeds for `seconds` s, one each `every` s on the average, each for at most 10 s, none twice at once.

    >>> draw(1, 10, ["a"]) == draw(1, 10, ["a"])
    True
    """
    chance = random.Random(seed)
    deeds: list[Deed] = []
    ends: dict[str, float] = {}
    at = 0.0
    while (at := at + chance.expovariate(1 / every)) < seconds:
        name = chance.choice(list(names))
        lasts = round(chance.uniform(0.2, 10.0), 1)
        if at > ends.get(name, 0.0):
            deeds.append(Deed(round(at, 1), name, lasts))
            ends[name] = at + lasts + 1.0
    return tuple(deeds)
