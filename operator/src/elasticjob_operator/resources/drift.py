"""Whether an object still says what we want, whoever changed it, and how to put it right."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

_EXACT = frozenset({"selector"})
"""Maps in which a key more changes the meaning. Elsewhere what only the server has (defaults, others' labels) is let
be."""
_QUANTITIES = frozenset({"limits", "requests"})
_AMOUNTS = frozenset({"value", "averageValue"})
"""Fields of an autoscaler's metrics that are quantities."""


def correction(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7396) that makes `observed` say what `desired` says; empty: it does already.

    >>> correction({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}})
    {'a': {'b': 1}}
    >>> correction({"selector": {"a": "1"}}, {"selector": {"a": "1", "b": "2"}})
    {'selector': {'b': None}}
    """
    patch: dict[str, Any] = {}
    for key, value in desired.items():
        known = observed.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            part = correction(value, known)
            if key in _EXACT:
                part |= {name: None for name in known if name not in value}
            if part and not (key in _QUANTITIES and _same_quantities(value, known)):
                patch[key] = part
        elif key in _AMOUNTS and known is not None and _amount(value) == _amount(known):
            continue
        elif key not in observed or not _covers(value, known):
            patch[key] = value
    return patch


def _covers(desired: Any, observed: Any) -> bool:
    """Lists have no keys to patch by, so they are compared element by element, and replaced whole."""
    if isinstance(desired, Mapping):
        return isinstance(observed, Mapping) and not correction(desired, observed)
    if isinstance(desired, list):
        pairs = zip(desired, observed, strict=False) if isinstance(observed, list) else ()
        return (
            isinstance(observed, list)
            and len(desired) == len(observed)
            and all(_covers(one, other) for one, other in pairs)
        )
    return bool(desired == observed)


def _same_quantities(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> bool:
    """The server spells quantities its own way: 0.5 becomes 500m."""
    return all(name in observed and _amount(value) == _amount(observed[name]) for name, value in desired.items())


def _amount(value: Any) -> Decimal | str:
    try:
        return Decimal(parse_quantity(value))  # type: ignore[no-untyped-call]
    except ValueError:
        return str(value)
