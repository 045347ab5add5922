"""What happens to the job, and which world should follow."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator

from benchmarks.recovery.job import Job, JobError
from benchmarks.recovery.measure import Recovery, goodput, recovery

AGENTS = 4
START_LIMIT = 120.0
"""s for the start: torchrun as shipped waits 30 s for agents that never come."""
NEVER = 90.0
"""s after which a recovery that has not come counts as never."""

START_EXPECTED = 9.0
"""s from the start of the agents to a world that trains, where nothing else runs."""

Figures = dict[str, Recovery]
"""Name of the change -> what it cost."""


def _full(job: Job, agents: int = AGENTS) -> float:
    """Starts them all; returns when, once they train."""
    started = job.start(agents)
    job.wait_steady(agents, started, START_LIMIT)
    return started


def _after(job: Job, event: float, world: int) -> Recovery:
    job.wait_first_step(world, event, NEVER)
    return recovery(job.workers(), event, world)


def crash(job: Job) -> Figures:
    started = _full(job)
    return {
        "start": recovery(job.workers(), started, AGENTS),
        "worker crash": _after(job, job.kill_worker(AGENTS - 2, AGENTS), AGENTS),
    }


def crash_of_rank_0(job: Job) -> Figures:
    _full(job)
    return {"crash of rank 0's worker": _after(job, job.kill_worker(0, AGENTS), AGENTS)}


def reset(job: Job) -> Figures:
    _full(job)
    return {"node reset": _after(job, job.reset_node(job.expendable(AGENTS)[0]), AGENTS - 1)}


def silent(job: Job) -> Figures:
    _full(job)
    return {"node silent": _after(job, job.freeze_node(job.expendable(AGENTS)[0]), AGENTS - 1)}


def join(job: Job) -> Figures:
    _full(job, AGENTS - 1)
    return {"node joins": _after(job, job.start(1), AGENTS)}


def leave(job: Job) -> Figures:
    _full(job)
    return {"SIGTERM": _after(job, job.terminate(job.expendable(AGENTS)[0]), AGENTS - 1)}


def resize(job: Job) -> Figures:
    _full(job)
    figures = {"4 -> 2": _after(job, job.terminate(*job.expendable(AGENTS)[:2]), 2)}
    if figures["4 -> 2"].first_step is not None:
        job.wait_steady(2, 0.0, START_LIMIT)
        figures["2 -> 4"] = _after(job, job.start(2), AGENTS)
    return figures


SCENARIOS: dict[str, Callable[[Job], Figures]] = {
    "crash": crash,
    "crash-rank-0": crash_of_rank_0,
    "reset": reset,
    "silent": silent,
    "join": join,
    "sigterm": leave,
    "resize": resize,
}


def expected(scenario: str, system: str) -> float:
    """About how many s after the start one run takes where nothing else runs; for planning only."""
    if system == "torchrun":
        return {"join": 9.0, "resize": 70.0}.get(scenario, 50.0)
    if system == "torchrun-tuned" and scenario == "silent":
        return NEVER
    return {"resize": 25.0}.get(
        scenario, 9.0 if system.startswith("torchrun") else 6.0 if system == "elasticrun-spawn" else 2.0
    )


def crashes(job: Job, seconds: float, every: float) -> float:
    """Goodput while a worker is killed every so many seconds, for so many seconds."""
    _full(job)
    start = time.time()
    for moment in _moments(start, seconds, every):
        time.sleep(max(0.0, moment - time.time()))
        with contextlib.suppress(JobError):  # it has not come back from the last one
            job.kill_worker(random.randrange(AGENTS), AGENTS)
    time.sleep(max(0.0, start + seconds - time.time()))
    return goodput(job.workers(), start, start + seconds)


def _moments(start: float, seconds: float, every: float) -> Iterator[float]:
    moment = start + every
    while moment < start + seconds:
        yield moment
        moment += every
