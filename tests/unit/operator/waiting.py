"""`eventually` for tests that run on an event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str = "", seconds: float = 10) -> None:
    """Returns when `condition()` is true. Raises AssertionError after that time."""
    end = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"not within {seconds:g} s: {what or condition!r}"
        await asyncio.sleep(0.005)
