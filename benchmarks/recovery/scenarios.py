"""What happens to a job, and what it costs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.recovery.report import NEVER, NEVER_SECONDS, OUTAGE, Row, Sample
from benchmarks.recovery.systems import HERE, SHARDED, Coordinator, System, coordinator, job
from hack.chaos.costs import Change, commits_of, longest_pause, samples_lost, usual_step
from hack.chaos.members import Job, JobError
from hack.support import within

AGENTS = 4
REPLICAS, SHARDS = 3, 2
SHARDED_SETTINGS = {"SAMPLES": "2400", "BATCH": "24", "PACE": "0.03"}
OVERHEAD_STEPS = 300
START_LIMIT = 120.0
LIMIT = 120.0
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
        self._lost = samples_lost(job.ledger())

        event, victims = job.kill(job.members()[-2])
        cost = self._cost(event, victims=victims)
        job.wait_training(AGENTS, LIMIT)
        yield self._sample(Row.KILL, cost.first_step, cost)
        if cost.world < AGENTS:
            cost = self._cost(event + cost.first_step, world=AGENTS)
            yield self._sample(Row.REPLACEMENT, cost.stall, cost)
        yield self._loss(Row.ALL, AGENTS, job.kill(*job.members())[0])
        yield self._loss(Row.RESET, AGENTS - 1, *job.reset(job.members()[-1]))
        yield self._resize(Row.JOIN, AGENTS, job.start(1))
        yield self._resize(Row.LEAVE, AGENTS - 1, job.terminate(job.members()[-1]))
        if self._system.notices_silence:
            yield self._loss(Row.SILENT, AGENTS - 2, *job.silence(job.members()[-1]))
        if self._system.survives_coordinator:
            yield self._without_coordinator()

    def _loss(self, row: Row, left: int, event: float, victims: list[str] | None = None) -> Sample:
        """`left`: how many train after it."""
        cost = self._cost(event, victims=victims)
        self._job.wait_training(left, LIMIT)
        return self._sample(row, cost.first_step, cost)

    def _resize(self, row: Row, world: int, event: float) -> Sample:
        cost = self._cost(event, world=world)
        self._job.wait_training(world, LIMIT)
        return self._sample(row, cost.stall, cost)

    def _without_coordinator(self) -> Sample:
        start = time.monotonic()
        self._service.kill()
        time.sleep(OUTAGE)
        commits = commits_of(self._job.ledger())
        return Sample(row=Row.COORDINATOR, value=longest_pause(commits, start, start + OUTAGE), steps_lost=0)

    def _cost(self, event: float, *, world: int | None = None, victims: list[str] | None = None) -> Change:
        cost = self._job.wait_change(event, LIMIT, world=world, victims=victims)
        if cost is None:
            raise JobError(f"no training within {LIMIT:g} s")
        return cost

    def _sample(self, row: Row, value: float, cost: Change, restarted: int | None = None) -> Sample:
        before, self._lost = self._lost, samples_lost(self._job.ledger())
        samples = max(0, self._lost - before)
        return Sample(row=row, value=value, steps_lost=cost.steps_lost, samples_lost=samples, restarted=restarted)


class ReplicaRound(Round):
    """The same for replicas: each agent's worker processes are one."""

    def samples(self) -> Iterator[Sample]:
        job, world = self._job, REPLICAS * SHARDS
        job.start(REPLICAS)
        job.wait_training(world, START_LIMIT)
        self._lost = samples_lost(job.ledger())
        yield from self._kill(Row.REPLICA_KILL)
        yield from self._kill(Row.RANK_KILL, last=True)
        yield self._resize(Row.REPLICA_JOIN, world + SHARDS, job.start(1))

    def _kill(self, row: Row, *, last: bool = False) -> Iterator[Sample]:
        """A replica, or one of its ranks, is killed, and starts again."""
        job, world = self._job, REPLICAS * SHARDS
        others = {process.name for process in job.training()}
        step = usual_step(commits_of(job.ledger()))
        event, victims = job.kill(job.members()[-2], last=last)
        cost = self._cost(event, victims=victims)
        job.wait_training(world, LIMIT)
        restarted = others - set(victims) - {process.name for process in job.training()}
        yield self._sample(row, cost.first_step - step, cost, len(restarted))
        if cost.world < world:
            cost = self._cost(event + cost.first_step, world=world)
            yield self._sample(Row.REPLICA_BACK, cost.stall, cost)


def changes(system: System, folder: Path) -> Iterator[Sample]:
    with coordinator(system, folder) as service, job(system, folder / "job", service.endpoint) as training:
        yield from Round(system, service, training).samples()


def replicas(system: System, folder: Path) -> Iterator[Sample]:
    with (
        coordinator(system, folder) as service,
        job(system, folder / "job", service.endpoint, script=system.script, **SHARDED_SETTINGS) as training,
    ):
        yield from ReplicaRound(system, service, training).samples()


def replicas_overhead(system: System, folder: Path) -> Iterator[Sample]:
    """The time of a step of two replicas with a session, as a multiple of one of HSDP in the same layout. Two jobs take
    turns."""
    turn = folder / "turn"
    turn.write_text(system.mode)
    settings = {**SHARDED_SETTINGS, "PACE": "0.045", "TURN": str(turn), "EVERY": "1000000000"}
    with (
        coordinator(system, folder) as service,
        job(system, folder / "session", service.endpoint, script=system.script, **settings) as session,
        job(SHARDED["torchrun-dcp"], folder / "plain", "", script=system.script, **settings) as plain,
    ):
        for training in (session, plain):
            training.start(2)
        for training in (session, plain):
            training.wait_training(2 * SHARDS, START_LIMIT)
        if not within(
            START_LIMIT, lambda: min(process.done[-1].step for process in plain.training()) >= OVERHEAD_STEPS
        ):
            raise JobError(f"less than {OVERHEAD_STEPS} steps after {START_LIMIT:g} s")
        bare = usual_step(commits_of(plain.ledger()))
        yield Sample(row=Row.REPLICA_OVERHEAD, value=usual_step(commits_of(session.ledger())) / bare, detail=bare)


def silences(system: System, folder: Path, jobs: int) -> Iterator[Sample]:
    """Each of these jobs of three agents has a silent one. They wait at the same time: nothing runs in them then."""
    events: list[tuple[Job, float, list[str]]] = []
    with coordinator(system, folder) as service, contextlib.ExitStack() as stack:
        for number in range(jobs):
            training = stack.enter_context(job(system, folder / f"job-{number}", service.endpoint))
            training.start(AGENTS - 1)
            training.wait_training(AGENTS - 1, START_LIMIT)
            events.append((training, *training.silence(training.members()[-1])))
        for training, event, victims in events:
            cost = training.wait_change(event, max(0.0, event + NEVER_SECONDS - time.monotonic()), victims=victims)
            yield Sample(row=Row.SILENT, value=cost.first_step if cost is not None else NEVER)


def state(system: System, folder: Path) -> Iterator[Sample]:
    """A member joins two whose state is 1 GiB. The value is the stall, as a multiple of what the bytes alone take."""
    large = {"BALLAST": "1024", "BALLAST_PART": "8"}
    with (
        coordinator(system, folder) as service,
        job(system, folder / "job", service.endpoint, script=HERE / "state_script.py", **large) as training,
    ):
        training.start(2)
        training.wait_training(2, START_LIMIT)
        cost = training.wait_change(training.start(1), START_LIMIT, world=3)
        if cost is None:
            raise JobError("the third member did not join")
        lines = _lines(training, "bare-transfer.log", lambda lines: len(lines) == 5)
        bare = statistics.median(float(line.split()[1]) for line in lines)
        yield Sample(row=Row.STATE, value=cost.stall / bare, detail=cost.stall)


def overhead(system: System, folder: Path) -> Iterator[Sample]:
    """The time of a step with a session, as a multiple of one without."""
    with (
        coordinator(system, folder) as service,
        job(system, folder / "job", service.endpoint, script=HERE / "overhead_script.py") as training,
    ):
        training.start(AGENTS)
        times: dict[str, list[float]] = {}
        for line in _lines(training, "overhead-0.log", lambda lines: bool(lines) and lines[-1].startswith("end")):
            name, seconds = line.split()
            times.setdefault(name, []).append(float(seconds))
        bare = statistics.median(times["bare"])
        yield Sample(row=Row.OVERHEAD, value=statistics.median(times["session"]) / bare, detail=bare)


def _lines(job: Job, name: str, complete: Callable[[list[str]], bool]) -> list[str]:
    """What a script has written, once it is complete."""
    log, lines = job.folder / name, list[str]()

    def is_complete() -> bool:
        lines[:] = log.read_text().splitlines() if log.exists() else []
        return complete(lines)

    if not within(START_LIMIT, is_complete):
        raise JobError(f"no result after {START_LIMIT:g} s")
    return lines
