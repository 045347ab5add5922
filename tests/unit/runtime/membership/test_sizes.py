"""How many members train."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import SpecValue
from elasticjob_runtime.membership.sizes import group_size, largest, limit


@pytest.mark.parametrize(
    ("spec", "there", "size"),
    [
        (SpecValue(min=2, max=4), 1, None),
        (SpecValue(min=2, max=4), 2, 2),
        (SpecValue(min=2, max=4), 3, 3),
        (SpecValue(min=2, max=4), 9, 4),
        (SpecValue(min=2, max=4, wanted=3), 9, 3),
        (SpecValue(min=2, max=4, wanted=1), 9, 2),  # never below the minimum
        (SpecValue(min=2, max=4, wanted=9), 9, 4),
        (SpecValue(min=2, max=8, allowed=[2, 4, 8]), 7, 4),
        (SpecValue(min=2, max=8, allowed=[2, 4, 8]), 3, 2),
        (SpecValue(min=4, max=8, allowed=[2, 4, 8]), 3, None),
        (SpecValue(min=2, max=6, allowed=[2, 4, 8]), 9, 4),
        (SpecValue(min=1, max=8, allowed=[4, 8], wanted=2), 9, 4),  # scaled below the smallest allowed size
        (SpecValue(min=1, max=8, allowed=[4, 8], wanted=5), 9, 4),
        (SpecValue(min=2, max=4, allowed=[2, 4], wanted=2), 9, 2),
        (SpecValue(min=1, max=4, allowed=[4], wanted=2), 9, 4),
        (SpecValue(min=2, max=4), 0, None),
    ],
)
def test_the_group_has_the_largest_allowed_size_up_to_the_wanted_one(
    spec: SpecValue, there: int, size: int | None
) -> None:
    assert group_size(spec, there) == size


@pytest.mark.parametrize(
    ("spec", "most", "whole"),
    [
        (SpecValue(min=2, max=4), 4, 4),
        (SpecValue(min=2, max=4, wanted=3), 3, 3),
        (SpecValue(min=2, max=5, allowed=[2, 4]), 5, 4),  # a fifth is not waited for
        (SpecValue(min=2, max=8, allowed=[4, 8], wanted=1), 4, 4),
    ],
)
def test_the_largest_size_is_the_wanted_or_maximum_allowed_one(spec: SpecValue, most: int, whole: int) -> None:
    assert (limit(spec), largest(spec)) == (most, whole)
