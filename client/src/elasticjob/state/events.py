"""Events of a job."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob.state.values import Json, Time, int_or, object_at, parse_time


@dataclass(frozen=True)
class EventState:
    time: Time | None
    warning: bool
    reason: str
    message: str
    count: int = 1


def event_states(events: Sequence[Json]) -> list[EventState]:
    """Oldest first."""
    found = [
        EventState(
            time=parse_time(object_at(each, "series").get("lastObservedTime"))
            or parse_time(each.get("lastTimestamp"))
            or parse_time(each.get("eventTime"))
            or parse_time(object_at(each, "metadata").get("creationTimestamp")),
            warning=each.get("type") == "Warning",
            reason=str(each.get("reason", "")),
            message=str(each.get("message") or each.get("note") or ""),
            count=int_or(each.get("count") or object_at(each, "series").get("count"), 1),
        )
        for each in events
    ]
    oldest = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
    return sorted(found, key=lambda each: each.time or oldest)
