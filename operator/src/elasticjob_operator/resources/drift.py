"""Drift detection: whether an object differs from its desired state, and the patch that corrects it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

_EXACT = frozenset({"selector"})
"""Maps in which an additional key changes the meaning. Additional fields elsewhere (defaults, labels) are ignored."""
_QUANTITIES = frozenset({"limits", "requests"})
_AMOUNTS = frozenset({"value", "averageValue"})
"""Fields of an autoscaler's metrics that are quantities."""


def correction(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7396) that turns `observed` into `desired`. Empty: no drift.

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
        elif key in _AMOUNTS and known is not None and amount(value) == amount(known):
            continue
        elif key not in observed or not _covers(value, known):
            patch[key] = value
    return patch


def exact_correction(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, Any]:
    """Like `correction`, for objects in which every additional field changes the meaning. It needs `desired` as the API
    server stores it.

    >>> exact_correction({"port": 2379}, {"port": 2379, "endPort": 65535})
    {'endPort': None}
    """
    patch: dict[str, Any] = {key: None for key in observed if key not in desired}
    for key, value in desired.items():
        known = observed.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            if part := exact_correction(value, known):
                patch[key] = part
        elif value != known:
            patch[key] = value
    return patch


def _covers(desired: Any, observed: Any) -> bool:
    """Lists have no keys to patch by: they are compared element by element and replaced as a whole."""
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
    """The API server normalizes quantities: 0.5 becomes 500m."""
    return all(name in observed and amount(value) == amount(observed[name]) for name, value in desired.items())


def amount(value: Any) -> Decimal | str:
    """Of a quantity. What is none stays text."""
    try:
        return Decimal(parse_quantity(value))  # type: ignore[no-untyped-call]
    except ValueError:
        return str(value)
