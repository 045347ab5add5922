"""Policies' results about conditions, in the terms of metav1.Condition."""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_api import Reason, message


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Why something is the case: a machine-readable reason and a human-readable message."""

    reason: Reason
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConditionUpdate(Cause):
    """A new value of a condition."""

    status: bool | None
    """None: Unknown."""
    requeue_at: datetime.datetime | None = None
    """When this changes if nothing else does."""


def cause(reason: Reason, **values: object) -> Cause:
    """With the message of `reason`, filled in with `values`."""
    return Cause(reason=reason, message=message(reason, **values))


def update(status: bool | None, reason: Reason, **values: object) -> ConditionUpdate:
    """With the message of `reason`, filled in with `values`."""
    return ConditionUpdate(status=status, reason=reason, message=message(reason, **values))
