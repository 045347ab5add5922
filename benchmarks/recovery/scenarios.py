"""The scenarios: what happens to the job, and which world should follow."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator

from benchmarks.recovery.job import Job, JobError
from benchmarks.recovery.measure import Recovery, goodput, recovery

AGENTS = 4
START_LIMIT = 120.0
"""s for the start: untuned torchrun waits 30 s for further agents."""
NEVER = 90.0
"""s after which a recovery counts as *never*."""

START_EXPECTED = 9.0
"""s from the start of the agents until they train, on an otherwise idle machine."""

Figures = dict[str, Recovery]
"""Name of the change -> what it cost."""


def _start_training(job: Job, agents: int = AGENTS) -> float:
    """Starts all agents and waits until they train. Returns when they were started."""
    started = job.start(agents)
    job.wait_steady(agents, started, START_LIMIT)
    return started


def _recover(job: Job, event: float, world: int) -> Recovery:
    job.wait_first_step(world, event, NEVER)
    return recovery(job.workers(), event, world)


def crash(job: Job) -> Figures:
    started = _start_training(job)
    return {
        "start": recovery(job.workers(), started, AGENTS),
        "worker crash": _recover(job, job.kill_worker(AGENTS - 2, AGENTS), AGENTS),
    }


def crash_of_rank_0(job: Job) -> Figures:
    _start_training(job)
    return {"crash of rank 0's worker": _recover(job, job.kill_worker(0, AGENTS), AGENTS)}


def reset(job: Job) -> Figures:
    _start_training(job)
    return {"node reset": _recover(job, job.reset_node(job.expendable(AGENTS)[0]), AGENTS - 1)}


def silent(job: Job) -> Figures:
    _start_training(job)
    return {"node silent": _recover(job, job.freeze_node(job.expendable(AGENTS)[0]), AGENTS - 1)}


def join(job: Job) -> Figures:
    _start_training(job, AGENTS - 1)
    return {"node joins": _recover(job, job.start(1), AGENTS)}


def leave(job: Job) -> Figures:
    _start_training(job)
    return {"SIGTERM": _recover(job, job.terminate(job.expendable(AGENTS)[0]), AGENTS - 1)}


def resize(job: Job) -> Figures:
    _start_training(job)
    figures = {"4 -> 2": _recover(job, job.terminate(*job.expendable(AGENTS)[:2]), 2)}
    if figures["4 -> 2"].first_step is not None:
        job.wait_steady(2, 0.0, START_LIMIT)
        figures["2 -> 4"] = _recover(job, job.start(2), AGENTS)
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
    """About how many s one run takes after its start, on an otherwise idle machine: only to show the total time."""
    if system == "torchrun":
        return {"join": 9.0, "resize": 70.0}.get(scenario, 50.0)
    if system == "torchrun-tuned" and scenario == "silent":
        return NEVER
    return {"resize": 25.0}.get(
        scenario, 9.0 if system.startswith("torchrun") else 6.0 if system == "elasticrun-spawn" else 2.0
    )


def crashes(job: Job, seconds: float, every: float) -> float:
    """Goodput over `seconds`, while a worker process is killed every `every` s."""
    _start_training(job)
    start = time.time()
    for moment in _moments(start, seconds, every):
        time.sleep(max(0.0, moment - time.time()))
        with contextlib.suppress(JobError):  # still recovering from the previous crash
            job.kill_worker(random.randrange(AGENTS), AGENTS)
    time.sleep(max(0.0, start + seconds - time.time()))
    return goodput(job.workers(), start, start + seconds)


def _moments(start: float, seconds: float, every: float) -> Iterator[float]:
    moment = start + every
    while moment < start + seconds:
        yield moment
        moment += every
