"""What happens to a job, and what it costs."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.in_place import report
from benchmarks.in_place.job import Job
from benchmarks.in_place.ledger import Change, goodput, longest_pause, samples_lost
from benchmarks.in_place.report import Row, Sample
from benchmarks.in_place.systems import HERE, Coordinator, coordinator
from benchmarks.recovery.job import JobError
from benchmarks.recovery.systems import System

AGENTS = 4
START_LIMIT = 120.0
NEVER = 60.0
"""s after which training counts as ended."""
OUTAGE = 15.0
"""s that a job is watched without its coordinator."""


class Round:
    """All changes once, in one job. Yields a sample per row."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lost = 0

    def samples(self) -> Iterator[Sample]:
        job = self._job
        job.wait_training(AGENTS, START_LIMIT)
        self._lost = samples_lost(job.update())

        event, victims = job.kill(job.members()[-2])
        cost = self._cost(event, victims=victims)
        job.wait_training(AGENTS, NEVER)
        yield self._sample(Row.KILL, cost.first_step, cost)
        if cost.world < AGENTS:
            after = event + cost.first_step
            cost = self._cost(after, world=AGENTS)
            yield self._sample(Row.REPLACEMENT, cost.stall, cost)

        event, _ = job.kill(*job.members())
        cost = self._cost(event)
        job.wait_training(AGENTS, NEVER)
        yield self._sample(Row.ALL, cost.first_step, cost)

        event, victims = job.reset(job.members()[-1])
        cost = self._cost(event, victims=victims)
        job.wait_training(AGENTS - 1, NEVER)
        yield self._sample(Row.RESET, cost.first_step, cost)
        yield self._joins(Row.JOIN, 1)

        event = job.terminate(*job.members()[-2:])
        cost = self._cost(event, world=AGENTS - 2)
        job.wait_training(AGENTS - 2, NEVER)
        yield self._sample(Row.SHRINK, cost.stall, cost)
        yield self._joins(Row.GROW, 2)

        event = job.terminate(job.members()[-1])
        cost = self._cost(event, world=AGENTS - 1)
        job.wait_training(AGENTS - 1, NEVER)
        yield self._sample(Row.LEAVE, cost.stall, cost)
        job.start(1)

    def _joins(self, row: Row, count: int) -> Sample:
        event = self._job.start(count)
        cost = self._cost(event, world=AGENTS)
        self._job.wait_training(AGENTS, NEVER)
        return self._sample(row, cost.stall, cost)

    def _cost(self, event: float, *, world: int | None = None, victims: list[str] | None = None) -> Change:
        cost = self._job.wait_change(event, NEVER, world=world, victims=victims)
        if cost is None:
            raise JobError(f"no training within {NEVER:g} s")
        return cost

    def _sample(self, row: Row, value: float, cost: Change) -> Sample:
        before, self._lost = self._lost, samples_lost(self._job.update())
        return Sample(row=row, value=value, steps_lost=cost.steps_lost, samples_lost=max(0, self._lost - before))


def changes(system: System, folder: Path, rounds: int) -> Iterator[Sample]:
    with coordinator(system, folder) as service, Job(system, folder / "job", service.endpoint) as job:
        job.start(AGENTS)
        for _ in range(rounds):
            yield from Round(job).samples()


def outages(system: System, folder: Path) -> Iterator[Sample]:
    """Faults of which a worker process sees nothing."""
    for row in (Row.SILENT, Row.COORDINATOR):
        where = folder / row.name.lower()
        where.mkdir()
        with coordinator(system, where) as service, Job(system, where / "job", service.endpoint) as job:
            job.start(AGENTS)
            job.wait_training(AGENTS, START_LIMIT)
            yield _silent(job) if row is Row.SILENT else _without(system, service, job)


def _silent(job: Job) -> Sample:
    event, victims = job.silence(job.members()[-1])
    cost = job.wait_change(event, NEVER, victims=victims)
    if cost is None:
        return Sample(row=Row.SILENT, value=report.NEVER)
    lost = samples_lost(job.update())
    return Sample(row=Row.SILENT, value=cost.first_step, steps_lost=cost.steps_lost, samples_lost=lost)


def _without(system: System, service: Coordinator, job: Job) -> Sample:
    start = time.time()
    if system.on_etcd:
        service.kill()
    else:
        job.reset("agent-0")
    time.sleep(OUTAGE)
    return Sample(row=Row.COORDINATOR, value=longest_pause(job.update().commits, start, start + OUTAGE))


def state(system: System, folder: Path, mebibytes: int) -> Iterator[Sample]:
    """A member joins two whose state is large. The value is the stall, as a multiple of what the bytes alone take."""
    with coordinator(system, folder) as service, Job(system, folder / "job", service.endpoint) as job:
        job.environment = {"BENCH_STATE_MIB": str(mebibytes)}
        job.start(2)
        job.wait_training(2, START_LIMIT)
        cost = job.wait_change(job.start(1), START_LIMIT, world=3)
        if cost is None:
            raise JobError("the third member did not join")
        job.wait_training(3, NEVER)
        log = job.folder / "bare-transfer.log"
        _wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 5)
        bare = statistics.median(float(line.split()[1]) for line in log.read_text().splitlines())
        yield Sample(row=Row.STATE, value=cost.stall / bare, steps_lost=cost.steps_lost, detail=cost.stall)


def overhead(system: System, folder: Path) -> Iterator[Sample]:
    """The time of a step with a session, as a multiple of one without."""
    with (
        coordinator(system, folder) as service,
        Job(system, folder / "job", service.endpoint, script=HERE / "overhead.py") as job,
    ):
        job.start(AGENTS)
        log = job.folder / "overhead-0.log"
        _wait_for(lambda: log.exists() and "end" in log.read_text())
        times: dict[str, list[float]] = {}
        for line in log.read_text().splitlines():
            name, seconds = line.split()
            times.setdefault(name, []).append(float(seconds))
        bare = statistics.median(times["bare"])
        yield Sample(row=Row.OVERHEAD, value=statistics.median(times["session"]) / bare, detail=bare)


def crashes(system: System, folder: Path, seconds: float, every: float) -> Iterator[Sample]:
    """A worker process is killed every `every` s. The value is the share of an undisturbed job's steps."""
    with coordinator(system, folder) as service, Job(system, folder / "job", service.endpoint) as job:
        job.environment = {"BENCH_STEP_SECONDS": "0.05"}
        job.start(AGENTS)
        job.wait_training(AGENTS, START_LIMIT)
        start = time.time()
        for number in range(1, int((seconds - 1) // every) + 1):
            time.sleep(max(0.0, start + number * every - time.time()))
            with contextlib.suppress(JobError):  # still recovering from the previous one
                job.kill(random.choice(job.members() or [""]))
        time.sleep(max(0.0, start + seconds - time.time()))
        yield Sample(row=Row.GOODPUT, value=goodput(job.update().commits, start, start + seconds))


def _wait_for(predicate: object, limit: float = START_LIMIT) -> None:
    assert callable(predicate)
    end = time.monotonic() + limit
    while not predicate():
        if time.monotonic() > end:
            raise JobError(f"no result after {limit:g} s")
        time.sleep(0.2)
