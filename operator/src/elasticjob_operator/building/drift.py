"""Whether an object still says what we want, whoever changed it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity


def covers(desired: Any, observed: Any, *, quantities: bool = False) -> bool:
    """Every field of `desired` has that value in `observed`; what only `observed` has (defaults of the API server, status) is ignored.

    `quantities`: the values are resource quantities, of which "0.5" and "500m" are the same.

    >>> covers({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}), covers({"a": [1]}, {"a": [1, 2]})
    (True, False)
    """
    if isinstance(desired, Mapping):
        return isinstance(observed, Mapping) and all(
            key in observed and covers(value, observed[key], quantities=quantities or key in ("limits", "requests"))
            for key, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(observed, list)
            and len(desired) == len(observed)
            and all(covers(one, other) for one, other in zip(desired, observed, strict=True))
        )
    return bool(desired == observed) or (quantities and _amount(desired) == _amount(observed) is not None)


def _amount(value: Any) -> Decimal | None:
    try:
        return Decimal(parse_quantity(value))  # type: ignore[no-untyped-call]
    except ValueError:
        return None
