"""`status.goodput`: what the job's time was spent on.

It is computed where the history is written anyway: with each change of the worker group, when the job stalls and when
that ends, and with a sample if the last figures are ten minutes old; every ten minutes in a job that is stalled. So it
costs hardly a write of its own, and the history is rarely parsed for it.
"""

from __future__ import annotations

import datetime

from elasticjob_api import ConditionType, ElasticJob, GoodputStatus, Status, StoredHistory
from elasticjob_api.goodput import goodput

MAX_AGE = datetime.timedelta(minutes=10)


def is_outdated(known: GoodputStatus | None, now: datetime.datetime) -> bool:
    return known is None or now - known.updated_at >= MAX_AGE


def goodput_status(job: ElasticJob, status: Status, history: StoredHistory, now: datetime.datetime) -> GoodputStatus:
    """`status`: the one that is written with it."""
    divided = goodput(
        history.read(),
        since=job.metadata.creation_timestamp,
        until=now,
        stalled=status.is_true(ConditionType.STALLED),
    )
    return GoodputStatus(
        percent=None if divided.low is None else int(100 * divided.low),
        updated_at=now,
        **{part.value: int(seconds) for part, seconds in divided.seconds.items() if seconds >= 1},
    )
