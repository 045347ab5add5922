"""What the Events of an object say."""

from __future__ import annotations

from elasticjob_operator.kube.explanations import explanation_of

from tests.unit.operator.builders import NOW


def test_an_event_at_an_impossible_time_is_the_oldest() -> None:
    events = [
        {"type": "Warning", "reason": "Old", "message": "m", "lastTimestamp": "0000-01-01T00:00:00Z"},
        {"type": "Warning", "reason": "New", "message": "m", "lastTimestamp": "2026-01-01T00:00:00Z"},
    ]
    assert explanation_of(events, None, NOW).message == "New: m"
