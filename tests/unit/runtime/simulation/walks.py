"""Walks by seed, and the smallest walk that still fails."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

from tests.unit.runtime.simulation.events import FOR_SESSIONS, Event, Kind, Walk
from tests.unit.runtime.simulation.invariants import Broken
from tests.unit.runtime.simulation.world import World

CHANGES = (
    Kind.CRASH_AGENT, Kind.CRASH_WORKER, Kind.CRASH_FORMING, Kind.BREAK_LINKS, Kind.FREEZE_WORKER, Kind.FREEZE,
    Kind.PARTITION, Kind.JOIN, Kind.JOIN, Kind.LEAVE, Kind.RESIZE, Kind.DRAIN, Kind.CUT_LINK,
)  # fmt: skip
"""What a script with a session meets more often than anything else in a walk."""


def session_walk(seed: int) -> Walk:
    """A walk whose script has a session. Most begin once the worker processes can continue in place, and most changes
    happen in the midst of another one."""
    draw = random.Random(seed)
    walk = _walk(draw, [*Kind], seed)
    first, *others = walk.events
    if draw.random() < 0.9:
        first = dataclasses.replace(first, after=round(draw.uniform(3.0, 8.0), 3))
    changes = draw.sample(CHANGES, draw.randint(2, 6))
    more = [_event(draw, changes, draw.choice([0.05, 0.5, 2.0])) for _ in range(draw.randint(0, 12))]
    kept = [event for event in others if draw.random() < 0.3]
    events = [first, *draw.sample([*more, *kept], len(more) + len(kept))]
    agents = max(walk.agents, draw.randint(1, 4))
    return dataclasses.replace(
        walk,
        session=True,
        nproc=draw.choice([1, 1, 2]),
        agents=agents,
        least=min(walk.least, draw.randint(1, agents)),
        most=max(walk.most, agents),
        allowed=draw.choice([(), walk.allowed]),
        max_restarts=draw.choice([100, 100, 100, 3]),
        events=events,
    )


def replica_walk(seed: int) -> Walk:
    """A walk whose script has a session, and trains in replicas."""
    walk, draw = session_walk(seed), random.Random(seed + 1)
    size = draw.choice([1, 2, 2, 3])
    least = size * draw.randint(1, 2)
    most = max(least, size * draw.randint(1, 4))
    return dataclasses.replace(
        walk,
        replica_size=size,
        nproc=draw.choice([1, 2]),
        agents=max(walk.agents, least + draw.randint(0, 3)),
        least=least,
        most=most,
        allowed=(),
    )


def random_walk(seed: int) -> Walk:
    return _walk(random.Random(seed), [kind for kind in Kind if kind not in FOR_SESSIONS], seed)


def _walk(draw: random.Random, kinds: list[Kind], seed: int) -> Walk:
    """Most walks draw from a few kinds of events only, so that these often coincide."""
    if draw.random() < 0.8:
        kinds = draw.sample(kinds, draw.randint(1, 5))
    agents = draw.randint(1, 6)
    least = draw.randint(1, agents)
    most = draw.randint(least, 6)
    sizes = tuple(size for size in (1, 2, 4) if least <= size <= most)
    return Walk(
        agents=agents,
        least=least,
        most=most,
        allowed=draw.choice([(), (), (), sizes]),
        max_restarts=draw.choice([100, 100, 0, 1, 3]),
        operator=(operator := draw.random() < 0.5),
        consistent=operator and draw.random() < 0.3,
        seed=seed,
        events=[_event(draw, kinds) for _ in range(draw.randint(1, 14))],
        saves=draw.random() < 0.4,
        together=draw.random() < 0.5,
    )


def _event(draw: random.Random, kinds: Sequence[Kind], at_most: float = 8.0) -> Event:
    kind = draw.choice(kinds)
    long = [70.0] * 3 if kind is Kind.ISLAND else []  # longer than any island may train
    return Event(
        after=round(min(at_most, draw.choice([0.0, 0.01, 0.1, 1.0, 3.0, 8.0])) * draw.random(), 3),
        kind=kind,
        who=draw.randrange(6),
        seconds=round(draw.choice([0.05, 0.5, 2.0, 7.0, 15.0, *long]) * draw.random(), 3),
        arg=draw.randrange(1, 64) if kind is Kind.ISLAND else draw.randrange(6),
    )


def failure_of(walk: Walk) -> Broken | None:
    try:
        World(walk).run()
    except Broken as broken:
        return broken
    return None


def shrink(walk: Walk, tries: int = 300) -> Walk:
    """A smaller walk that fails too, for any reason."""
    while tries > 0:
        for smaller in _smaller(walk):
            tries -= 1
            if failure_of(smaller) is not None:
                walk = smaller
                break
            if tries <= 0:
                return walk
        else:
            return walk
    return walk


def _smaller(walk: Walk) -> Iterator[Walk]:
    events = list(walk.events)
    for start in range(len(events)):
        for length in (4, 1):
            if start + length <= len(events):
                yield dataclasses.replace(walk, events=[*events[:start], *events[start + length :]])
    unit = walk.replica_size or 1
    if walk.agents > unit:
        least = min(walk.least, (walk.agents - 1) // unit * unit)
        yield dataclasses.replace(walk, agents=walk.agents - 1, least=least)
    plainer = [
        dataclasses.replace(walk, consistent=False),
        dataclasses.replace(walk, saves=False),
        dataclasses.replace(walk, together=False),
        dataclasses.replace(walk, nproc=1),
        dataclasses.replace(walk, operator=False, consistent=False),
    ]
    yield from (one for one in (*plainer, dataclasses.replace(walk, allowed=())) if one != walk)
    for index, event in enumerate(events):
        if round(event.after, 1) != event.after:
            rounder = dataclasses.replace(event, after=round(event.after, 1))
            yield dataclasses.replace(walk, events=[*events[:index], rounder, *events[index + 1 :]])
