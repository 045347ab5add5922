"""`eventually` and `within` wait for behaviour instead of sleeping, in tests and in what injects faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], timeout: float = 60.0, interval: float = 0.05, what: str | Callable[[], str] = ""
) -> T:
    """Calls `predicate` until it returns something true, and returns that.

    Raises AssertionError after `timeout` seconds with `what`, the last value and the last error; `what` is a function
    where it has what is known only then, such as a log. An AssertionError inside the predicate means "not yet", and so
    does a LookupError: it looks at what is not there. Every other exception is a bug in the test and passes through.
    """
    end = time.monotonic() + timeout
    while True:
        reason: Exception | None = None
        value: T | None = None
        try:
            value = predicate()
            if value:
                return value
        except (AssertionError, LookupError) as error:
            reason = error
        if time.monotonic() > end:
            told = what() if callable(what) else what
            raise AssertionError(
                f"not within {timeout:g} s: {told or repr(predicate)}; last value {value!r}"
            ) from reason
        time.sleep(interval)


def within(seconds: float, predicate: Callable[[], object], interval: float = 0.5) -> bool:
    """Whether `predicate` returns something true in that time."""
    end = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > end:
            return False
        time.sleep(interval)
    return True
