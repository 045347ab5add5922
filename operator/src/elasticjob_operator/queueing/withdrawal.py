"""A surplus whose worker pods never get ready is given back, and asked for again later.

It holds quota that it does not use, and with `waitForPodsReady.blockAdmission` in Kueue's configuration it keeps every
other job waiting. Kueue itself evicts it after half an hour, and not at all where `waitForPodsReady` is off.

How often that happened, and when last, is an annotation of the base.
"""

from __future__ import annotations

import datetime
from typing import Any

from elasticjob_api.fields import format_time

from elasticjob_operator import names
from elasticjob_operator.queue_state import Withdrawals, Workload

READY_SECONDS = 600.0
"""How long the worker pods of a surplus may take. A node that an autoscaler adds, and an image of some gigabytes, take
less."""
LONGEST_SECONDS = 2 * 3600.0
"""The longest time until the next attempt."""
_CLOCKS_DIFFER = datetime.timedelta(seconds=READY_SECONDS)
"""At most, where the operator runs now and where it ran before."""


def ready_by(surplus: Workload) -> datetime.datetime | None:
    """Until when its worker pods must be ready. None: they have been, or it is not admitted."""
    since = surplus.condition("Admitted").get("lastTransitionTime")
    if not surplus.is_admitted or surplus.is_true("PodsReady") or not since:
        return None
    try:
        return datetime.datetime.fromisoformat(str(since)) + datetime.timedelta(seconds=READY_SECONDS)
    except (ValueError, OverflowError):  # anyone who may patch a Workload's status may write any time
        return None


def next_attempt(withdrawals: Withdrawals, now: datetime.datetime) -> datetime.datetime | None:
    """When more may be asked for. None: now. A time in the future, which someone has written, counts for nothing."""
    if withdrawals.last is None or withdrawals.last - now > _CLOCKS_DIFFER:
        return None
    seconds = min(READY_SECONDS * 2.0 ** (min(max(withdrawals.count, 1), 10) - 1), LONGEST_SECONDS)
    due = withdrawals.last + datetime.timedelta(seconds=seconds)
    return due if now < due else None


def recorded(base: Workload, now: datetime.datetime) -> dict[str, Any]:
    """The patch of the base that counts one more."""
    return _annotated(base, f"{base.withdrawals.count + 1} {format_time(now)}")


def forgotten(base: Workload) -> dict[str, Any]:
    """The patch of the base once a surplus is ready."""
    return _annotated(base, None)


def _annotated(base: Workload, value: str | None) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": base.version, "annotations": {names.ANNOTATION_WITHDRAWN: value}}}
