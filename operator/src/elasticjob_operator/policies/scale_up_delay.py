"""When a job that wants more workers gets them.

Each change of size interrupts training briefly, so scale-ups can be delayed and combined
(`spec.scaling.scaleUpDelaySeconds`). The current target size and the time of the pending scale-up are in status, so the
delay survives a restart of the operator. Scale-downs are never delayed, and a job that is new or resumed starts with
the size requested at that time.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_api import ElasticJob


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TargetSize:
    replicas: int
    """Worker pods to aim at now."""
    requested: int
    """Worker pods requested in the spec."""
    scale_up_at: datetime.datetime | None = None
    """When `replicas` rises to `requested`. None: no scale-up is pending."""


def delay_scale_up(job: ElasticJob, now: datetime.datetime) -> TargetSize:
    requested, before = job.replicas, job.status.desired_replicas
    delay = job.spec.scaling.scale_up_delay_seconds
    if job.is_suspended or job.status.start_time is None or not before or requested <= before or not delay:
        return TargetSize(replicas=requested, requested=requested)
    current = job.round_down(min(max(before, job.min_replicas), job.max_replicas))
    due = job.status.scale_up_time or now.replace(microsecond=0) + datetime.timedelta(seconds=delay)
    if now >= due or current >= requested:
        return TargetSize(replicas=requested, requested=requested)
    return TargetSize(replicas=current, requested=requested, scale_up_at=due)
