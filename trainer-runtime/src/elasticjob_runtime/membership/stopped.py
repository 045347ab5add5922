"""Worker processes that a signal has stopped (SIGSTOP, SIGTSTP ...), and when they count as failed. Pure.

A stopped process keeps its connections, so the others wait in a collective without an error.
"""

from __future__ import annotations

from collections.abc import Mapping

STOPPED_TIMEOUT = 2.0
"""s that a worker process may be stopped. Tools that stop a process to look at it take less."""

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
