"""`eventually` for tests that run on an event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Returns when `condition()` is true. Raises AssertionError after 10 s."""
    end = asyncio.get_running_loop().time() + 10
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"not within 10 s: {what or condition!r}"
        await asyncio.sleep(0.005)
