"""Makes failure values, for the store, of what a worker group observes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticjob_runtime.contract import FailureValue
from elasticjob_runtime.contract.collectives import calls_of, pack
from elasticjob_runtime.training import flight_recorder
from elasticjob_runtime.workers.failure import KILL_EXIT_CODES, describe, happened_at
from elasticjob_runtime.workers.oom import OomKills
from elasticjob_runtime.workers.process import WorkerProcess
from elasticjob_runtime.workers.state_machine import HANG

CANNOT_START = 127
"""Exit code in the failure of a process that cannot be started, as a shell has it."""


class FailureValues:
    def __init__(self, member: str) -> None:
        self._member = member
        self._round = 0
        self._oom_kills = OomKills()

    def begin_round(self, round_number: int) -> None:
        self._round = round_number
        self._oom_kills.reset()

    def of_exit(self, worker: WorkerProcess, code: int) -> FailureValue:
        """`worker` has ended with `code`, which is not 0."""
        spec = worker.spec
        if worker.given_up is not None:
            return self._make(spec.rank, spec.local_rank, code, *worker.given_up)
        out_of_memory = self._oom_kills.happened() if code in KILL_EXIT_CODES else False
        reason, message, traceback = describe(code, spec.error_file, worker.stderr_tail, out_of_memory=out_of_memory)
        at = happened_at(code, spec.error_file, worker.traceback_at, time.time())
        failure = self._make(spec.rank, spec.local_rank, code, reason, message, traceback, at)
        return dataclasses.replace(failure, collectives=_collectives(spec.error_file))

    def recorded(self, running: Sequence[WorkerProcess]) -> list[FailureValue]:
        """Of those that have written their error file and are about to exit."""
        return [self.of_exit(worker, 1) for worker in running if worker.spec.error_file.exists()]

    def of_hang(self, rank: int, local_rank: int, message: str) -> FailureValue:
        return self._make(rank, local_rank, -signal.SIGKILL, HANG, message)

    def of_start(self, rank: int, local_rank: int, message: str) -> FailureValue:
        """It cannot be started."""
        return self._make(rank, local_rank, CANNOT_START, "CannotStart", message)

    def _make(
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


def _collectives(error_file: Path) -> dict[str, Any]:
    """That a worker had begun when an exception ended it."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return pack(calls_of(json.loads(Path(flight_recorder.json_file(str(error_file))).read_bytes())))
    return {}
