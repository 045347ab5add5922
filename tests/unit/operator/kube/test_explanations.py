"""What the Events of an object say."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.kube.explanations import explanation_of

from tests.unit.operator.builders import NOW


def test_an_event_at_an_impossible_time_is_the_oldest() -> None:
    events = [
        {"type": "Warning", "reason": "Old", "message": "m", "lastTimestamp": "0000-01-01T00:00:00Z"},
        {"type": "Warning", "reason": "New", "message": "m", "lastTimestamp": "2026-01-01T00:00:00Z"},
    ]
    assert explanation_of(events, None, NOW).message == "New: m"


PULLED = 'Container image "elasticjob-runtime:1" already present on machine'
PULLING = 'Pulling image "no-such-registry.invalid/x:1"'


def event(nanoseconds: int, reason: str, message: str, *, warning: bool = False) -> dict[str, Any]:
    """As a kubelet writes it: its name tells the order within a second."""
    return {
        "metadata": {"name": f"digits-worker-0-abcde.{nanoseconds:x}"},
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-01-01T00:00:{nanoseconds // 10**9:02}Z",
    }


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([(11, "Pulled", PULLED), (19, "Pulling", PULLING)], PULLING, id="an image is being pulled"),
        pytest.param([(11, "Pulling", PULLING), (19, "Pulled", "Successfully pulled")], "", id="... and was pulled"),
        pytest.param([(11, "Pulling", PULLING), (30, "TaintManagerEviction", "Cancelling")], PULLING, id="a taint"),
        pytest.param(
            [(10, "Scheduled", "Successfully assigned"), (20, "SuccessfulAttachVolume", "s")], "", id="begins"
        ),
        pytest.param([(11, "Pulled", PULLED), (12, "Created", "c"), (13, "Started", "s")], "", id="has started"),
        pytest.param(
            [(10, "ExternalProvisioning", "Waiting for a volume"), (20, "WaitForPodScheduled", "waiting for pod")],
            "ExternalProvisioning: Waiting for a volume",
            id="a claim has no volume yet",
        ),
    ],
)
def test_what_is_finished_is_never_what_an_object_waits_for(events: list[tuple[int, str, str]], expected: str) -> None:
    listed = [event(tenths * 10**8, reason, message) for tenths, reason, message in events]
    assert explanation_of(listed, None, NOW).message == expected


def test_a_claim_that_nothing_can_bind_says_so() -> None:
    """The controller posts it as Normal."""
    text = "no persistent volumes available for this claim and no storage class is set"
    assert explanation_of([event(10**9, "FailedBinding", text)], None, NOW).message == f"FailedBinding: {text}"


def test_a_volume_that_is_attached_at_last_is_not_waited_for() -> None:
    failed = event(10**9, "FailedAttachVolume", "Multi-Attach error", warning=True)
    assert explanation_of([failed, event(9 * 10**9, "SuccessfulAttachVolume", "s")], None, NOW).message == ""
    again = event(10 * 10**9, "FailedAttachVolume", "Multi-Attach error", warning=True)
    assert explanation_of([event(9 * 10**9, "SuccessfulAttachVolume", "s"), again], None, NOW).message


def test_a_warning_stays_until_a_container_has_started() -> None:
    failed = event(10**9, "FailedMount", "secret not found", warning=True)
    attached = event(2 * 10**9, "SuccessfulAttachVolume", "attached")
    started = event(3 * 10**9, "Started", "Container started")
    assert explanation_of([failed, attached], None, NOW).message == "FailedMount: secret not found"
    assert explanation_of([failed, attached, started], None, NOW).message == ""
