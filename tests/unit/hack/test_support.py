"""`eventually`: what means "not yet", and what is a bug in the test."""

from __future__ import annotations

import pytest

from hack.support import eventually


def test_what_is_not_there_yet_is_waited_for() -> None:
    found: list[int] = []
    calls = 0

    def first() -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            found.append(7)
        return found[0]

    assert eventually(first, 10, 0.001) == 7


def test_the_last_reason_is_told() -> None:
    missing: dict[str, int] = {}
    with pytest.raises(AssertionError, match=r"^not within 0\.01 s: a key;") as caught:
        eventually(lambda: missing["key"], 0.01, 0.001, "a key")
    assert isinstance(caught.value.__cause__, KeyError)


def test_any_other_error_passes_through() -> None:
    def broken() -> bool:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        eventually(broken, 10)
