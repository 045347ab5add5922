"""Prepares the start of a worker process: its environment, error file and output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.training import auto_progress, flight_recorder
from elasticjob_runtime.workers import logs
from elasticjob_runtime.workers.environment import GroupSpec, group_rank, worker_environment
from elasticjob_runtime.workers.process import Command, WorkerSpec


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedWorker:
    spec: WorkerSpec
    sinks: list[logs.Sink]
    """For its output."""
    writing_ends: list[BinaryIO]
    """The other ends of the sinks' pipes, which only the worker holds after its start."""

    def close_writing_ends(self) -> None:
        for end in self.writing_ends:
            end.close()

    def close_sinks(self) -> None:
        for sink in self.sinks:
            sink.close()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPreparation:
    """What the workers of all rounds have in common."""

    group: GroupSpec
    command: Command
    environment: Mapping[str, str]
    agent_socket: str
    log_settings: logs.LogSettings
    directory: logs.LogDirectory

    def prepare(self, plan: Plan, local_rank: int, *, without_libuv: bool, alone: bool = False) -> PreparedWorker:
        """Raises OSError, ValueError."""
        rank = group_rank(plan) * self.group.nproc + local_rank
        directory = self.directory.worker(plan.round, local_rank)
        error_file = self.directory.error_file(plan.round, local_rank)
        for file_of in (str, flight_recorder.json_file, flight_recorder.pickle_file):
            Path(file_of(str(error_file))).unlink(missing_ok=True)
        self._prepare_page(auto_progress.page_file(str(error_file)))
        environment = self.worker_environment(
            plan, local_rank, str(error_file), without_libuv=without_libuv, alone=alone
        )
        sinks: list[logs.Sink] = []
        writing_ends: dict[int, BinaryIO] = {}
        for stream in (logs.STDOUT, logs.STDERR):
            sink, end = logs.open_sink(
                self.log_settings, directory, stream, local_rank=local_rank, rank=rank, role=self.group.role
            )
            if sink is not None and end is not None:
                sinks.append(sink)
                writing_ends[stream] = end
        spec = WorkerSpec(
            command=self.command,
            environment=environment,
            local_rank=local_rank,
            rank=rank,
            error_file=error_file,
            stdout=writing_ends[logs.STDOUT].fileno() if logs.STDOUT in writing_ends else None,
            stderr=writing_ends[logs.STDERR].fileno() if logs.STDERR in writing_ends else None,
        )
        return PreparedWorker(spec, sinks, list(writing_ends.values()))

    def _prepare_page(self, path: str) -> None:
        """Raises OSError."""
        if not self.group.no_auto_progress:
            auto_progress.create_page(path)
        else:
            auto_progress.remove_page(path)

    def worker_environment(
        self, plan: Plan, local_rank: int, error_file: str, *, without_libuv: bool = False, alone: bool = False
    ) -> dict[str, str]:
        """Raises ValueError."""
        return worker_environment(
            self.environment, self.group, plan.value, group_rank(plan), local_rank,
            error_file=error_file, agent_socket=self.agent_socket, replica=plan.replica,
            without_libuv=without_libuv, alone=alone,
        )  # fmt: skip
