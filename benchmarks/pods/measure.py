"""Computes figures from what worker processes log. Pure. Times are Unix time, s."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker:
    """What one worker process logged."""

    member: str
    pid: int
    rank: int
    world: int
    began: float
    """When its script began, before its imports."""
    resumed: int
    """The step of the checkpoint that it resumed from."""
    steps: tuple[tuple[float, int], ...] = ()
    """(time, step), in order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
    """What one change cost. None: training did not resume within the limit."""

    first_step: float | None
    """s from the event to the first step of the next world."""
    stall: float | None
    """The longest time without a step, from the last step before the event to that first step, s."""
    steps_lost: int | None
    """Steps that were repeated."""


def parse_log(text: str) -> Worker | None:
    """None where even the first line is incomplete. Skips an incomplete last line."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    if not lines:
        return None
    steps = tuple((float(time), int(step)) for time, step in (line.split() for line in lines[1:]))
    return Worker(**json.loads(lines[0]), steps=steps)


def newest_world(workers: Iterable[Worker], world: int, since: float) -> list[Worker]:
    """The latest worker process of each rank, of those that began after `since` in a world of this size. Empty where a
    rank is missing."""
    latest: dict[int, Worker] = {}
    for worker in sorted(workers, key=lambda worker: worker.began):
        if worker.world == world and worker.began >= since:
            latest[worker.rank] = worker
    return [latest[rank] for rank in sorted(latest)] if len(latest) == world else []


def first_step(workers: Iterable[Worker], world: int, since: float) -> float | None:
    """When worker processes that began after `since` did their first step as a world of this size."""
    times = [
        worker.steps[0][0] for worker in workers if worker.world == world and worker.began >= since and worker.steps
    ]
    return min(times, default=None)


def recovery(workers: Sequence[Worker], event: float, world: int) -> Recovery:
    """What the event at that time cost, until worker processes that began later trained as a world of this size."""
    first = first_step(workers, world, event)
    if first is None:
        return Recovery(first_step=None, stall=None, steps_lost=None)
    return Recovery(
        first_step=first - event,
        stall=_longest_pause(workers, event, first),
        steps_lost=_steps_lost(workers, event, first),
    )


def _longest_pause(workers: Iterable[Worker], event: float, first: float) -> float:
    times = sorted(time for worker in workers for time, _ in worker.steps if time <= first)
    before = max((time for time in times if time <= event), default=event)
    course = [before, *(time for time in times if time > event)]
    return max((after - earlier for earlier, after in itertools.pairwise(course)), default=0.0)


def _steps_lost(workers: Sequence[Worker], event: float, first: float) -> int:
    """How far each world that began between the event and the first step went back behind its predecessor, in sum."""
    leaders = sorted(
        (one for one in workers if one.rank == 0 and event <= one.began <= first), key=lambda one: one.began
    )
    lost, since, reached = 0, 0.0, 0
    for leader in leaders:
        reached = max(
            (step for one in workers for time, step in one.steps if since <= time < leader.began), default=reached
        )
        lost += max(0, reached - leader.resumed)
        since, reached = leader.began, leader.resumed
    return lost
