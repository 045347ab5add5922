"""The axes of drawn histories."""

from __future__ import annotations

import pytest
from elasticjob.views.svg import MOST_TICKS, ticks


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.4, [0]),
        (7, [0, 1, 2, 3, 4, 5, 6, 7]),
        (305, [0, 60, 120, 180, 240, 300]),
        (5400, [0, 900, 1800, 2700, 3600, 4500, 5400]),
        (30 * 86_400, [day * 86_400 for day in range(0, 31, 4)]),
    ],
)
def test_labels_of_the_time_axis_are_round_and_few(seconds: float, labels: list[int]) -> None:
    assert ticks(seconds) == labels
    assert len(labels) <= MOST_TICKS
