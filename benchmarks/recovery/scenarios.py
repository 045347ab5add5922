"""What happens to a job, and what it costs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.recovery.job import Job, JobError
from benchmarks.recovery.ledger import Change, longest_pause, samples_lost
from benchmarks.recovery.report import NEVER, NEVER_SECONDS, OUTAGE, Row, Sample
from benchmarks.recovery.systems import HERE, Coordinator, System, coordinator

AGENTS = 4
START_LIMIT = 120.0
LIMIT = 60.0
"""s after which a change in a job counts as failed."""


class Round:
    """All changes once, in one job. Yields a sample per row."""

    def __init__(self, system: System, service: Coordinator, job: Job) -> None:
        self._system = system
        self._service = service
        self._job = job
        self._lost = 0

    def samples(self) -> Iterator[Sample]:
        job = self._job
        job.start(AGENTS)
        job.wait_training(AGENTS, START_LIMIT)
        self._lost = samples_lost(job.update())

        event, victims = job.kill(job.members()[-2])
        cost = self._cost(event, victims=victims)
        job.wait_training(AGENTS, LIMIT)
        yield self._sample(Row.KILL, cost.first_step, cost)
        if cost.world < AGENTS:
            cost = self._cost(event + cost.first_step, world=AGENTS)
            yield self._sample(Row.REPLACEMENT, cost.stall, cost)

        event, _ = job.kill(*job.members())
        cost = self._cost(event)
        job.wait_training(AGENTS, LIMIT)
        yield self._sample(Row.ALL, cost.first_step, cost)

        event, victims = job.reset(job.members()[-1])
        cost = self._cost(event, victims=victims)
        job.wait_training(AGENTS - 1, LIMIT)
        yield self._sample(Row.RESET, cost.first_step, cost)

        cost = self._cost(job.start(1), world=AGENTS)
        job.wait_training(AGENTS, LIMIT)
        yield self._sample(Row.JOIN, cost.stall, cost)

        cost = self._cost(job.terminate(job.members()[-1]), world=AGENTS - 1)
        job.wait_training(AGENTS - 1, LIMIT)
        yield self._sample(Row.LEAVE, cost.stall, cost)

        if self._system.notices_silence:
            event, victims = job.silence(job.members()[-1])
            cost = self._cost(event, victims=victims)
            job.wait_training(AGENTS - 2, LIMIT)
            yield self._sample(Row.SILENT, cost.first_step, cost)
        if self._system.survives_coordinator:
            yield self._without_coordinator()

    def _without_coordinator(self) -> Sample:
        start = time.time()
        self._service.kill()
        time.sleep(OUTAGE)
        return Sample(
            row=Row.COORDINATOR, value=longest_pause(self._job.update().commits, start, start + OUTAGE), steps_lost=0
        )

    def _cost(self, event: float, *, world: int | None = None, victims: list[str] | None = None) -> Change:
        cost = self._job.wait_change(event, LIMIT, world=world, victims=victims)
        if cost is None:
            raise JobError(f"no training within {LIMIT:g} s")
        return cost

    def _sample(self, row: Row, value: float, cost: Change) -> Sample:
        before, self._lost = self._lost, samples_lost(self._job.update())
        return Sample(row=row, value=value, steps_lost=cost.steps_lost, samples_lost=max(0, self._lost - before))


def changes(system: System, folder: Path) -> Iterator[Sample]:
    with coordinator(system, folder) as service, Job(system, folder / "job", service.endpoint) as job:
        yield from Round(system, service, job).samples()


def silences(system: System, folder: Path, jobs: int) -> Iterator[Sample]:
    """Each of these jobs of three agents has a silent one. They wait at the same time: nothing runs in them then."""
    events: list[tuple[Job, float, list[str]]] = []
    with coordinator(system, folder) as service, contextlib.ExitStack() as stack:
        for number in range(jobs):
            job = stack.enter_context(Job(system, folder / f"job-{number}", service.endpoint))
            job.start(AGENTS - 1)
            job.wait_training(AGENTS - 1, START_LIMIT)
            events.append((job, *job.silence(job.members()[-1])))
        for job, event, victims in events:
            cost = job.wait_change(event, max(0.0, event + NEVER_SECONDS - time.time()), victims=victims)
            yield Sample(row=Row.SILENT, value=cost.first_step if cost is not None else NEVER)


def state(system: System, folder: Path) -> Iterator[Sample]:
    """A member joins two whose state is 1 GiB. The value is the stall, as a multiple of what the bytes alone take."""
    with coordinator(system, folder) as service, Job(system, folder / "job", service.endpoint) as job:
        job.environment = {"BENCH_STATE_MIB": "1024"}
        job.start(2)
        job.wait_training(2, START_LIMIT)
        cost = job.wait_change(job.start(1), START_LIMIT, world=3)
        if cost is None:
            raise JobError("the third member did not join")
        lines = _lines(job, "bare-transfer.log", lambda lines: len(lines) == 5)
        bare = statistics.median(float(line.split()[1]) for line in lines)
        yield Sample(row=Row.STATE, value=cost.stall / bare, detail=cost.stall)


def overhead(system: System, folder: Path) -> Iterator[Sample]:
    """The time of a step with a session, as a multiple of one without."""
    with (
        coordinator(system, folder) as service,
        Job(system, folder / "job", service.endpoint, script=HERE / "overhead_script.py") as job,
    ):
        job.start(AGENTS)
        times: dict[str, list[float]] = {}
        for line in _lines(job, "overhead-0.log", lambda lines: bool(lines) and lines[-1].startswith("end")):
            name, seconds = line.split()
            times.setdefault(name, []).append(float(seconds))
        bare = statistics.median(times["bare"])
        yield Sample(row=Row.OVERHEAD, value=statistics.median(times["session"]) / bare, detail=bare)


def _lines(job: Job, name: str, complete: Callable[[list[str]], bool]) -> list[str]:
    """What a script has written, once it is complete."""
    log, end = job.folder / name, time.monotonic() + START_LIMIT
    while True:
        lines = log.read_text().splitlines() if log.exists() else []
        if complete(lines):
            return lines
        if time.monotonic() > end:
            raise JobError(f"no result after {START_LIMIT:g} s")
        time.sleep(0.2)
