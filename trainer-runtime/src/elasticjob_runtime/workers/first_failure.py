"""Collects the failures of a worker group until it is known which came first."""

from __future__ import annotations

import dataclasses
import signal
import socket
import time
from collections.abc import Sequence

from elasticjob_runtime.contract import PEER_LOST, FailureValue
from elasticjob_runtime.membership.failures import first_failure
from elasticjob_runtime.workers.failure import KILL_EXIT_CODES, describe, happened_at
from elasticjob_runtime.workers.oom import OomKills
from elasticjob_runtime.workers.process import WorkerProcess
from elasticjob_runtime.workers.zygote import hooks

CAUSE_GRACE = 0.3
"""s to wait after the failure of a worker that lost a peer: the peer's own failure, on this or another machine, is the
one to report."""


class FailureCollector:
    def __init__(self, member: str) -> None:
        self._member = member
        self._round = 0
        self._oom_kills = OomKills()
        self._failures: list[FailureValue] = []
        self.decide_at: float | None = None
        """Monotonic time at which `decide` should be called; None while there is no failure."""

    def __bool__(self) -> bool:
        return bool(self._failures)

    def begin_round(self, round_number: int) -> None:
        self._round = round_number
        self._oom_kills.reset()

    def add_exit(self, worker: WorkerProcess, code: int, running: Sequence[WorkerProcess], now: float) -> None:
        """A worker ended with a non-zero exit code. `running`: the others."""
        self._failures.append(self._failure_of(worker, code))
        self.add_recorded(running)
        if first_failure(self._failures).reason != PEER_LOST:
            self.decide_at = now
        elif self.decide_at is None:
            self.decide_at = now + CAUSE_GRACE

    def add_recorded(self, running: Sequence[WorkerProcess]) -> None:
        """Adds failures of workers that have written their error file and are about to exit."""
        self._failures += [self._failure_of(worker, 1) for worker in running if worker.spec.error_file.exists()]

    def add_hang(self, workers: Sequence[WorkerProcess], message: str, now: float) -> None:
        """The workers run, but make no progress. They get some time to write their stacks."""
        for worker in workers:
            hooks.request_stacks(worker.pid, worker.spec.error_file)
        spec = workers[0].spec
        self._failures.append(self._failure(spec.rank, spec.local_rank, -signal.SIGKILL, hooks.HANG, message))
        self.decide_at = now + hooks.STACKS_SECONDS

    def add_failed_start(self, rank: int, local_rank: int, message: str, now: float) -> None:
        self._failures.append(self._failure(rank, local_rank, 127, "CannotStart", message))
        self.decide_at = now

    def decide(self, running: Sequence[WorkerProcess]) -> FailureValue:
        """Returns the failure that came first, and forgets them all."""
        failure = first_failure(self._failures)
        if failure.reason == hooks.HANG:
            stacks = hooks.stacks({worker.spec.local_rank: worker.spec.error_file for worker in running})
            failure = dataclasses.replace(failure, traceback=stacks)
        self.clear()
        return failure

    def clear(self) -> None:
        self._failures = []
        self.decide_at = None

    def _failure_of(self, worker: WorkerProcess, code: int) -> FailureValue:
        spec = worker.spec
        if worker.given_up is not None:
            return self._failure(spec.rank, spec.local_rank, code, *worker.given_up)
        out_of_memory = self._oom_kills.happened() if code in KILL_EXIT_CODES else False
        reason, message, traceback = describe(code, spec.error_file, worker.stderr_tail, out_of_memory=out_of_memory)
        at = happened_at(code, spec.error_file, worker.traceback_at, time.time())
        return self._failure(spec.rank, spec.local_rank, code, reason, message, traceback, at)

    def _failure(
        self,
        rank: int,
        local_rank: int,
        code: int,
        reason: str,
        message: str,
        traceback: str = "",
        at: float | None = None,
    ) -> FailureValue:
        return FailureValue(
            member=self._member,
            round=self._round,
            rank=rank,
            local_rank=local_rank,
            exit_code=code,
            reason=reason,
            message=message,
            traceback=traceback,
            host=socket.gethostname(),
            time=time.time() if at is None else at,
        )
