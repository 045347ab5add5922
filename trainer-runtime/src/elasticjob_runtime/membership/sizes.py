"""How many members train, given minimum, maximum, wanted and allowed sizes. Pure."""

from __future__ import annotations

from elasticjob_runtime.contract import SpecValue


def limit(spec: SpecValue) -> int:
    """The most members that may train now: `wanted` within the bounds, and never fewer than can train at all."""
    wanted = spec.wanted or spec.max
    smallest = min((size for size in spec.allowed if spec.min <= size <= spec.max), default=spec.min)
    return max(smallest, min(spec.max, wanted))


def group_size(spec: SpecValue, available: int) -> int | None:
    """The largest allowed size with `available` members, in whole replicas; None if that is below the minimum.

    >>> group_size(SpecValue(min=2, max=8, allowed=[2, 4, 8]), 7)
    4
    >>> group_size(SpecValue(min=3, max=9, replica_size=3), 8)
    6
    """
    most, unit = min(available, limit(spec)), spec.replica_size or 1
    if not spec.allowed:
        most -= most % unit
        return most if most >= spec.min else None
    sizes = [size for size in spec.allowed if spec.min <= size <= most and size % unit == 0]
    return max(sizes, default=None)


def largest(spec: SpecValue) -> int:
    """The size when all members are present."""
    return group_size(spec, spec.max) or limit(spec)
