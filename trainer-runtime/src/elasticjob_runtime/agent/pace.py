"""How fast the local worker processes are, in windows of at least 30 steps, as their pages say
(training/auto_progress.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from elasticjob_runtime.contract import PaceValue
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.training import auto_progress
from elasticjob_runtime.workers.oom import cgroup_file, own_cgroups

MIN_STEPS = 30
"""Of a window."""
SKIPPED_STEPS = 10
"""At the start: they compile and warm caches."""
READ_SECONDS = 1.0
WINDOW_SECONDS_MAX = 60.0
WRITES_PER_SECOND = 20

Page = tuple[int, float, float]
"""As auto_progress.WAITED."""


def window_seconds(age: float, members: int) -> float:
    """The least length of a window of workers that were started `age` s ago. Each window costs each member a write to
    etcd; all members together write 20 times a second at most.

    >>> window_seconds(0.0, 4), window_seconds(600.0, 4), window_seconds(86400.0, 4), window_seconds(0.0, 1000)
    (1.0, 10.0, 60.0, 50.0)
    """
    return max(min(WINDOW_SECONDS_MAX, max(READ_SECONDS, age / 60)), members / WRITES_PER_SECOND)


class Throttling:
    """How often this container was out of CPU, because it has a limit."""

    def __init__(self, file: Path | None = None) -> None:
        """`file`: cpu.stat; None: this process's."""
        self._file = file
        self._before = self._counts()

    def share(self) -> float:
        """Of the scheduler's periods since the last call, 0 to 1."""
        before, self._before = self._before, self._counts()
        periods, throttled = (after - known for after, known in zip(self._before, before, strict=True))
        return min(1.0, throttled / periods) if periods > 0 else 0.0

    def _counts(self) -> tuple[int, int]:
        """(periods, throttled ones)"""
        fields: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            file = self._file or _own_file()
            lines = file.read_text().splitlines() if file is not None else []
            fields = {name: int(number) for name, number in map(str.split, lines)}
        return fields.get("nr_periods", 0), fields.get("nr_throttled", 0)


def _own_file() -> Path | None:
    with contextlib.suppress(OSError):
        return cgroup_file(*own_cgroups(), "cpu", "cpu.stat", "cpu.stat")
    return None


class PaceMeter:
    """Of the local workers of one round. Times are monotonic, s."""

    def __init__(self, started_at: float = 0.0, throttling: Throttling | None = None) -> None:
        self._started_at = started_at
        self._throttling = throttling or Throttling()
        self._began: dict[int, Page] = {}
        """By local rank, its page at the begin of the window."""
        self._closes_at = 0.0
        self._window = 0
        self.due = started_at
        self.own_seconds: dict[int, float] = {}
        """By local rank, in the last window."""

    def read(self, error_files: Mapping[int, str], plan: Plan, now: float) -> PaceValue | None:
        """Returns a window that ends now. `error_files`: by local rank. `plan`: has a rank for this member."""
        if now < self.due or plan.rank is None:
            return None
        self.due = now + READ_SECONDS
        pages = {local: auto_progress.read_waited(auto_progress.page_file(file)) for local, file in error_files.items()}
        known = {local: page for local, page in pages.items() if page is not None and page[0] > SKIPPED_STEPS}
        if len(known) < len(pages) or not known:
            return None
        if known.keys() != self._began.keys():
            self._begin(known, plan.value.size, now)
            return None
        steps = {local: page[0] - self._began[local][0] for local, page in known.items()}
        if min(steps.values()) < MIN_STEPS or now < self._closes_at:
            return None
        length = {local: (page[1] - self._began[local][1]) / steps[local] for local, page in known.items()}
        waited = {local: (page[2] - self._began[local][2]) / steps[local] for local, page in known.items()}
        self._begin(known, plan.value.size, now)
        self._window += 1
        self.own_seconds = {local: round(max(0.0, length[local] - waited[local]), 6) for local in known}
        first_rank = plan.rank.group_rank * plan.value.nproc
        return PaceValue(
            round=plan.round,
            window=self._window,
            step_seconds=round(max(length.values()), 6),
            own_seconds={str(first_rank + local): own for local, own in self.own_seconds.items()},
            throttled=round(self._throttling.share(), 3),
        )

    def _begin(self, pages: dict[int, Page], members: int, now: float) -> None:
        self._began = pages
        self._closes_at = now + window_seconds(now - self._started_at, members)
        if not self._window:
            self._throttling.share()
