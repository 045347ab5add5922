"""Progress of the local workers: what rank 0 reports for the store, the highest step for crash loops, the times of the
steps for the hang rule. If the script reports nothing, its optimizer steps are counted instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from elasticjob_runtime.agent.optimizer_steps import OptimizerSteps
from elasticjob_runtime.agent.rate_meter import RateMeter
from elasticjob_runtime.agent.trainer_status import TrainerStatus, with_status
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.membership.hang import Hang, HangLimits, StepTimes
from elasticjob_runtime.telemetry.transitions import WorkerReport

PUBLISH_SECONDS = 1.0
"""s between two progress writes in the first minute of a round, when users are likely to be watching."""

PUBLISH_SECONDS_MAX = 10.0
"""s between two progress writes in a long round. Every write is a revision of an etcd that other jobs may share: one
per second would be 86,400 per day."""


def publish_pause(age: float) -> float:
    """s to the next progress write of workers that were started `age` s ago: a sixtieth of it, within bounds.

    >>> publish_pause(0.0), publish_pause(300.0), publish_pause(86400.0)
    (1.0, 5.0, 10.0)
    """
    return min(PUBLISH_SECONDS_MAX, max(PUBLISH_SECONDS, age / 60))


class RoundProgress:
    """Progress of the current round. Not thread-safe: use it on the agent's event loop only. Times are monotonic, s."""

    def __init__(self, limits: HangLimits, publish: Callable[[ProgressValue], None]) -> None:
        self.limits = limits
        self._publish = publish
        self._news: ProgressValue | None = None
        self._due = 0.0
        self._steps = StepTimes()
        """That the script reported."""
        self._counted = StepTimes()
        """Of optimizers."""
        self._passes = StepTimes("backward pass")
        self._optimizer_steps = OptimizerSteps()
        self._last: ProgressValue | None = None
        """Of this round."""
        self._meter = RateMeter()
        self._started_at = 0.0
        self.step: int | None = None
        """The highest step or checkpoint that a local worker has reported since the last start."""
        self.stepped = 0
        """The last round in which one has reported a step; 0: none."""

    @property
    def deadline(self) -> float | None:
        """When progress is due to be published, or a hang can be detected."""
        times = (
            self._due if self._news is not None else None,
            self._times.deadline(self.limits),
            self._optimizer_steps.due,
        )
        return min((at for at in times if at is not None), default=None)

    @property
    def _times(self) -> StepTimes:
        """What is known best: a script's own reports, then optimizer steps."""
        known = (times for times in (self._steps, self._counted) if times.last is not None)
        return next(known, self._passes)

    def starting(self, now: float) -> None:
        """New workers start."""
        self._forget_steps()
        self._optimizer_steps = OptimizerSteps(now)
        self._last = None
        self._meter = RateMeter()
        self._started_at = now
        self.step = None

    def reported(self, report: WorkerReport, now: float) -> None:
        if report.phase == "pause":
            self._steps.pause(report.seconds, report.why, now)
            self._counted.pause(report.seconds, report.why, now)
            self._passes.pause(report.seconds, report.why, now)
        if report.phase in ("step", "first-step"):
            self.stepped = max(self.stepped, report.round)
        if report.step is None or report.phase not in ("step", "checkpoint"):
            return
        self.step = report.step if self.step is None else max(self.step, report.step)
        if report.phase == "step":
            self._steps.add(report.step, now)
        elif report.rank == 0 and self._last is not None:  # the last one is followed by no step
            self._news = self._last = dataclasses.replace(self._last, last_checkpoint_step=report.step)

    def set_progress(self, progress: ProgressValue, round_number: int) -> None:
        """Rank 0 has reported `progress`."""
        if self._last is not None:  # what only the other kind of report says
            progress = dataclasses.replace(
                progress,
                percent=self._last.percent,
                total_steps=self._last.total_steps,
                remaining_seconds=self._last.remaining_seconds,
            )
        self._news = self._last = dataclasses.replace(progress, round=round_number)

    def set_trainer_status(self, status: TrainerStatus, round_number: int, now: float) -> ProgressValue | None:
        """Rank 0 has reported by Kubeflow's protocol. `now`: Unix time, s. Returns the progress, if there is any.

        Only shown: such reports come every 5 s at most and not during an evaluation, so they say nothing about hangs
        and crash loops.
        """
        rate = self._meter.rate(status.step, now) if status.step is not None else 0.0
        progress = with_status(status, self._last, round_number=round_number, steps_per_second=rate, now=now)
        if progress is not None:
            self._news = self._last = progress
        return progress

    def count(self, error_files: Mapping[int, str], now: float) -> OptimizerSteps | None:
        """Reads how many optimizer steps and backward passes the workers with these error files, by local rank, have
        taken, once a second. Returns them if there is something to show."""
        pages = self._optimizer_steps
        pages.watch(error_files)
        if pages.due is not None and now < pages.due:
            return None
        pages.read(now)
        if pages.steps:
            self._counted.count(pages.steps, pages.stepped_at)
            self._counted.alive(pages.passed_at)
        if pages.passes:
            self._passes.count(pages.passes, pages.passed_at)
        self._steps.alive(max(pages.stepped_at, pages.passed_at))
        return pages if (pages.steps or pages.passes) and self._last is None else None

    def publish_counted(self, round_number: int, now: float, unix: float, *, at_once: bool) -> None:
        """Publishes the optimizer steps, if it is time to and rank 0 reports nothing. `unix`: Unix time, s."""
        progress = self._optimizer_steps.progress(round_number, now, unix, at_once=at_once)
        if progress is not None and self._last is None:
            self._publish(progress)

    def publish(self, now: float, *, at_once: bool) -> None:
        if self._news is not None and (at_once or now >= self._due):
            self._publish(self._news)
            self._news = None
            self._due = now + publish_pause(now - self._started_at)

    def ran_seconds(self, now: float) -> float:
        return round(max(0.0, now - self._started_at), 3)

    def ended(self, now: float) -> None:
        """No further step is expected of these workers."""
        self._forget_steps()
        self._optimizer_steps.finish(now)

    def _forget_steps(self) -> None:
        self._steps, self._counted, self._passes = StepTimes(), StepTimes(), StepTimes("backward pass")

    def hang(self, now: float, *, waits: bool = False) -> Hang | None:
        """What to ask about now, because there was no step for long. waits: for a plan that includes the workers, which
        may have taken a step on trial, and take none now."""
        if waits:
            self._forget_steps()
        return self._times.hang(self.limits, now)

    @property
    def last_step(self) -> tuple[int, float] | None:
        """The last step that is known to the hang rule, and when it ended."""
        return self._times.last
