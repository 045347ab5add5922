"""The optimizer steps, and the backward passes, of scripts that do not report their progress, as the agent reads them
from the workers' pages (training/auto_progress.py)."""

from __future__ import annotations

from collections.abc import Mapping

from elasticjob_runtime.agent.rate_meter import RateMeter
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.training import auto_progress
from elasticjob_runtime.training.auto_progress import Page

READ_SECONDS = 1.0
"""s between two looks at the pages."""

PUBLISH_SECONDS = 10.0
PUBLISH_SECONDS_MAX = 600.0
"""s between two writes of the count, at first and at most. Each costs a write of the job's status, for jobs that wrote
none before; agents' metrics are always up to date."""


def publish_pause(age: float) -> float:
    """s to the next write of a count by workers that were started `age` s ago.

    >>> publish_pause(0.0), publish_pause(300.0), publish_pause(86400.0)
    (10.0, 300.0, 600.0)
    """
    return min(PUBLISH_SECONDS_MAX, max(PUBLISH_SECONDS, age))


class OptimizerSteps:
    """Of the local workers of one round. Times are monotonic, s."""

    def __init__(self, started_at: float = 0.0) -> None:
        self._started_at = started_at
        self._error_files: Mapping[int, str] = {}
        self._pages: dict[int, Page] = {}
        """By local rank."""
        self._meter = RateMeter()
        self.per_second = 0.0
        """Steps per second; without any step, backward passes."""
        self.due: float | None = None
        """When to look at the pages again; None: no workers run."""
        self._publish_at = started_at
        self._published = 0

    @property
    def steps(self) -> int:
        """Of the worker that has taken most. The others take as many, or wait for it."""
        return max((page.steps for page in self._pages.values()), default=0)

    @property
    def passes(self) -> int:
        """Likewise."""
        return max((page.passes for page in self._pages.values()), default=0)

    @property
    def stepped_at(self) -> float:
        """When the last step ended."""
        return max((page.stepped_at for page in self._pages.values()), default=0.0)

    @property
    def passed_at(self) -> float:
        """When the last backward pass ended."""
        return max((page.passed_at for page in self._pages.values()), default=0.0)

    def watch(self, error_files: Mapping[int, str]) -> None:
        """These workers run, by local rank, with their error files."""
        self._error_files = error_files or self._error_files

    def read(self, now: float) -> None:
        """Reads the pages."""
        self.due = now + READ_SECONDS
        before = self.steps
        for local_rank, error_file in self._error_files.items():
            page = auto_progress.read_page(auto_progress.page_file(error_file))
            if page is not None:
                self._pages[local_rank] = page._replace(
                    stepped_at=min(page.stepped_at, now), passed_at=min(page.passed_at, now)
                )
        if self.steps and not before:
            self._meter = RateMeter()  # it has measured backward passes
        self.per_second = round(self._meter.rate(self.steps or self.passes, now), 3)

    def finish(self, now: float) -> None:
        """The workers have ended: reads their pages for the last time."""
        if self._error_files:
            self.read(now)
        self._error_files, self.due = {}, None

    def progress(self, round_number: int, now: float, unix: float, *, at_once: bool) -> ProgressValue | None:
        """What to publish, if it is time to, or `at_once` and new. `unix`: Unix time, s."""
        count = self.steps or self.passes
        if count in (0, self._published) or (now < self._publish_at and not at_once):
            return None
        self._published = count
        self._publish_at = now + publish_pause(now - self._started_at)
        return ProgressValue(
            step=0,
            round=round_number,
            steps_per_second=self.per_second,
            updated_at=unix,
            optimizer_steps=self.steps,
            backward_passes=None if self.steps else self.passes,
        )
