"""Gives up worker processes that a signal has stopped (SIGSTOP, SIGTSTP ...). A stopped process keeps its connections,
so the others wait in a collective without an error.

The kernel sends the agent SIGCHLD whenever a worker process stops or continues, so no polling is needed. A process
that a debugger has stopped does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.environment import STOPPED_TIMEOUT
from elasticjob_runtime.workers.failure import signal_name
from elasticjob_runtime.workers.process import WorkerProcess

logger = logging.getLogger(__name__)

STOPPED = "Stopped"
"""Failure reason: a signal stopped the worker process."""


STALL = 1.0
"""s. An agent that looks this late stood still itself. Whatever stopped them both may continue the worker processes a
moment later."""


class StoppedProcesses:
    """Keyed by process ID; times are monotonic, s."""

    def __init__(self, timeout: float = STOPPED_TIMEOUT) -> None:
        """`timeout`: s that a process may be stopped; 0: no limit."""
        self.timeout = timeout
        self._since: dict[int, float] = {}

    @property
    def deadline(self) -> float | None:
        """When to look again."""
        return min(self._since.values()) + self.timeout if self._since else None

    def look(self, stopped: Mapping[int, int], now: float) -> dict[int, int]:
        """Returns the processes that have been stopped for too long, with the signal that stopped each.

        `stopped`: all processes that are stopped now, with the signal."""
        if not self.timeout:
            return {}
        late = self.deadline is not None and now >= self.deadline + STALL
        self._since = {pid: now if late else self._since.get(pid, now) for pid in stopped}
        overdue = {pid: stopped[pid] for pid, since in self._since.items() if now >= since + self.timeout}
        for pid in overdue:
            del self._since[pid]
        return overdue


def kill_stopped(processes: StoppedProcesses, workers: Iterable[WorkerProcess], now: float) -> None:
    """Kills the workers that have been stopped for too long."""
    by_pid = {worker.pid: worker for worker in workers}
    found = {pid: linux.stop_signal(pid) for pid in by_pid} if processes.timeout else {}
    overdue = processes.look({pid: number for pid, number in found.items() if number}, now)
    for pid, number in overdue.items():
        message = f"stopped by {signal_name(number)} for {processes.timeout:g} s"
        logger.warning("worker process %d is %s; killing it", pid, message)
        by_pid[pid].fail(STOPPED, message)
