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
            time=parse_time(object_at(event, "series").get("lastObservedTime"))
            or parse_time(event.get("lastTimestamp"))
            or parse_time(event.get("eventTime"))
            or parse_time(object_at(event, "metadata").get("creationTimestamp")),
            warning=event.get("type") == "Warning",
            reason=str(event.get("reason", "")),
            message=str(event.get("message") or event.get("note") or ""),
            count=int_or(event.get("count") or object_at(event, "series").get("count"), 1),
        )
        for event in events
    ]
    oldest = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
    return sorted(found, key=lambda event: event.time or oldest)
