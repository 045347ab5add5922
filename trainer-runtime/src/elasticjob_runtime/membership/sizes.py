"""How many members train: the one place that knows min, max, wanted and allowed sizes."""

from __future__ import annotations

from elasticjob_runtime.contract import SpecValue


def limit(spec: SpecValue) -> int:
    """Most members that may train now: max, or fewer where fewer are wanted; never fewer than can train at all."""
    wanted = spec.wanted or spec.max
    smallest = min((size for size in spec.allowed if spec.min <= size <= spec.max), default=spec.min)
    return max(smallest, min(spec.max, wanted))


def group_size(spec: SpecValue, available: int) -> int | None:
    """The largest size that `available` members allow; None where that is below the minimum.

    >>> group_size(SpecValue(min=2, max=8, allowed=[2, 4, 8]), 7)
    4
    """
    most = min(available, limit(spec))
    if not spec.allowed:
        return most if most >= spec.min else None
    fitting = [size for size in spec.allowed if spec.min <= size <= most]
    return max(fitting, default=None)


def largest(spec: SpecValue) -> int:
    """The size that is trained with when everybody is there."""
    return group_size(spec, spec.max) or limit(spec)
