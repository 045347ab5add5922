"""Samples of the progress in `status.history`.

They are kept while there is room. Then each new one displaces the one whose neighbors are closest in time, so the rest
stay about evenly spaced. The first and the newest are never displaced.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from elasticjob_api import ConditionType, OptimizerSteps, Sample, Status, StoredHistory
from elasticjob_api.history import MAX_SAMPLES, time_of
from elasticjob_runtime.contract import PlanValue

from elasticjob_operator.state import RendezvousView

CLOCK_SECONDS = 60.0
"""A report's time counts if it is not older than this, in s; otherwise its clock is wrong, or no operator was running
when it came."""


def new_sample(before: Status, after: Status, view: RendezvousView, now: datetime.datetime) -> Sample | None:
    """The progress, if it is new, else the optimizer steps of a script that reports none."""
    plan = view.plan
    if plan is None:
        return None
    if after.optimizer_steps is not None:
        return _counted(before.optimizer_steps, after.optimizer_steps, plan, now)
    known, new = before.progress, after.progress
    if new is None or (known is not None and (known.step, known.updated_at) == (new.step, new.updated_at)):
        return None
    of_this_round = view.progress is not None and view.progress.round == plan.round
    return Sample(
        time=_trusted(new.updated_at, now),
        step=new.step,
        world_size=plan.world_size if of_this_round else before.world_size or plan.world_size,
        steps_per_second=new.steps_per_second,
    )


def sample_of_stall(before: Status, after: Status, view: RendezvousView, now: datetime.datetime) -> Sample | None:
    """The last known step when a job is no longer stalled, so that the time before is not taken for training."""
    plan, progress, counted = view.plan, after.progress, after.optimizer_steps
    if plan is None or not before.is_true(ConditionType.STALLED) or after.is_true(ConditionType.STALLED):
        return None
    if counted is not None and counted.backward_passes is None:
        return _of_counted(counted, plan, now)
    if progress is None:
        return None
    return Sample(time=now, step=progress.step, world_size=plan.world_size, steps_per_second=progress.steps_per_second)


def _counted(
    known: OptimizerSteps | None, new: OptimizerSteps, plan: PlanValue, now: datetime.datetime
) -> Sample | None:
    if new == known or new.backward_passes is not None:
        return None
    return _of_counted(new, plan, _trusted(new.updated_at, now))


def _of_counted(steps: OptimizerSteps, plan: PlanValue, time: datetime.datetime) -> Sample:
    return Sample(
        time=time, step=steps.count, world_size=plan.world_size, steps_per_second=steps.per_second, counted=True
    )


def _trusted(reported: datetime.datetime | None, now: datetime.datetime) -> datetime.datetime:
    """The time of a report, unless a clock is wrong or no operator was running when it came."""
    oldest = now - datetime.timedelta(seconds=CLOCK_SECONDS)
    return reported if reported is not None and oldest <= reported <= now else now


def with_sample(stored: StoredHistory | None, sample: Sample) -> StoredHistory:
    """Parses no more than the times of the other samples: there is a sample for each report."""
    body = stored.body if stored is not None else {}
    texts: list[str] = list(body.get("samples") or ())
    times = [time for text in texts if (time := time_of(text)) is not None]
    if len(times) != len(texts):
        texts, times = [], []  # of another version
    if times and sample.time < times[-1]:
        sample = dataclasses.replace(sample, time=times[-1])
    texts, times = [*texts, str(sample)], [*times, sample.time.replace(microsecond=0)]
    while (surplus := surplus_sample(times)) is not None:
        del texts[surplus], times[surplus]
    return StoredHistory({**body, "samples": texts})


def surplus_sample(times: Sequence[datetime.datetime]) -> int | None:
    """Which sample to drop; None: none. `times`: of the samples, in order."""
    if len(times) > 1 and times[-1] == times[-2]:
        return len(times) - 2
    if len(times) <= MAX_SAMPLES:
        return None
    gaps = (after - before for before, after in zip(times, times[2:], strict=False))
    return min(zip(gaps, range(1, len(times)), strict=False))[1]
