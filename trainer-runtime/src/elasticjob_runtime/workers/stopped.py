"""Gives up worker processes that a signal has stopped.

The kernel sends the agent SIGCHLD whenever a worker process stops or continues, so no polling is needed. A process
that a debugger has stopped does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from elasticjob_runtime.membership.stopped import StoppedProcesses
from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.failure import signal_name
from elasticjob_runtime.workers.process import WorkerProcess

logger = logging.getLogger(__name__)

STOPPED = "Stopped"
"""Failure reason: a signal stopped the worker process."""


def kill_stopped(processes: StoppedProcesses, workers: Iterable[WorkerProcess], now: float) -> None:
    """Kills the workers that have been stopped for too long."""
    by_pid = {worker.pid: worker for worker in workers}
    found = {pid: linux.stop_signal(pid) for pid in by_pid} if processes.timeout else {}
    overdue = processes.look({pid: number for pid, number in found.items() if number}, now)
    for pid, number in overdue.items():
        message = f"stopped by {signal_name(number)} for {processes.timeout:g} s"
        logger.warning("worker process %d is %s; killing it", pid, message)
        by_pid[pid].fail(STOPPED, message)
