"""Garbage collection in short pauses. A full collection looks at all objects: with 5,000 jobs it held up the event loop
for 0.4 s, every ten seconds. What has survived one lives long, so the next ones leave it out.

What becomes garbage of that is freed all the same, except for cycles; for these, all is looked at once an hour.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

FULL, ALL_SECONDS = 2, 3600.0
"""The oldest generation; how long objects are left out, s."""


@contextlib.contextmanager
def in_short_pauses(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """`clock`: s."""
    since = clock()

    def on_collection(phase: str, info: dict[str, Any]) -> None:
        nonlocal since
        if info["generation"] != FULL:
            return
        if phase == "stop":
            gc.freeze()
        elif clock() >= since + ALL_SECONDS:
            since = clock()
            gc.unfreeze()

    gc.callbacks.append(on_collection)
    try:
        yield
    finally:
        gc.callbacks.remove(on_collection)
        gc.unfreeze()
