"""When a wish for more workers is met.

Each change of size interrupts the training for a moment, so wishes for more may be gathered for a while
(`spec.scaling.scaleUpDelaySeconds`). What the operator aims at is in status, as is the time from which on it will be
more: exact after a restart of the operator. Fewer are wanted at once. A job that is new, or resumed, starts with what
is wanted then.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_operator.api import ElasticJob


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    replicas: int
    """Worker pods to aim at now."""
    wish: int
    """Worker pods wanted."""
    scale_up_at: datetime.datetime | None = None
    """When it will be more; None: it is what is wanted."""


def settle(job: ElasticJob, now: datetime.datetime) -> Growth:
    wish, before = job.replicas, job.status.desired_replicas
    delay = job.spec.scaling.scale_up_delay_seconds
    if job.is_suspended or job.status.start_time is None or not before or wish <= before or not delay:
        return Growth(replicas=wish, wish=wish)
    held = job.round_down(min(max(before, job.min_replicas), job.max_replicas))
    due = job.status.scale_up_time or now.replace(microsecond=0) + datetime.timedelta(seconds=delay)
    if now >= due or held >= wish:
        return Growth(replicas=wish, wish=wish)
    return Growth(replicas=held, wish=wish, scale_up_at=due)
