"""How much memory and event loop time one endpoint may use. Pure: no clock, no I/O.

The owner of a job chooses the endpoint, so the server there is untrusted. The bounds are far above what an etcd needs.
Exceeding one sets a condition on the jobs of that endpoint and affects no others. Where each is applied:
docs/design/0009-operator-scale.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MAX_HEAD = 16 * 1024
"""Status line and headers of a response, bytes."""
MAX_MESSAGE = 4 * 1024 * 1024
"""A response's body, or one line of a watch, bytes. etcd accepts at most 1.5 MiB at once, which is 2 MiB in base64."""
MAX_JSON_PARTS = 200_000
"""Values, keys and brackets of one message. Each may become a Python object of some 64 bytes, so
`[],[],...` would be twenty times as large in memory. A message with a thousand events has some 10,000."""
SMALL_MESSAGE = 64 * 1024
"""What a connection may buffer outside the pool, bytes."""
MAX_LARGE_TOTAL = 48 * 1024 * 1024
"""What all connections together may buffer beyond that, bytes."""


class LimitExceeded(Exception):
    """An endpoint sent more than allowed. The message is one clause."""


def check_json_parts(message: bytes | bytearray) -> None:
    """Raises LimitExceeded where parsing this JSON needs far more memory than its length suggests."""
    if (
        len(message) > MAX_JSON_PARTS
        and message.count(b",") + message.count(b"[") + message.count(b"{") > MAX_JSON_PARTS
    ):
        raise LimitExceeded(f"sends a message of more than {MAX_JSON_PARTS} parts")


class Holder(Protocol):
    def cut(self) -> None:
        """Releases all it holds, at once."""


class MemoryPool:
    """Memory for large messages, shared by all connections. When it is exhausted, the connection that has held its
    share longest is closed: an etcd sends even its largest message within moments, and a slow sender must not block
    the others."""

    def __init__(self, size: int = MAX_LARGE_TOTAL) -> None:
        """`size`: bytes."""
        self._size = size
        self._held: dict[Holder, int] = {}
        self.used = 0

    def hold(self, holder: Holder, amount: int) -> None:
        """`holder` now holds this many bytes. Raises LimitExceeded if it is the one to close."""
        large = max(0, amount - SMALL_MESSAGE)
        before = self._held.get(holder, 0)
        if large == before:
            return
        if large:
            self._held[holder] = large
        else:
            del self._held[holder]
        self.used += large - before
        while self.used > self._size:
            victim = next(iter(self._held))
            self.used -= self._held.pop(victim)
            if victim is holder:
                raise LimitExceeded("takes too long over a large message")
            victim.cut()

    def release(self, holder: Holder) -> None:
        self.used -= self._held.pop(holder, 0)


BURST = 1.0
"""Event loop time that an endpoint may use in a burst, s."""
SHARE_OF_A_RUN, LARGEST_SHARE = 0.05, 0.5
"""Share of the event loop that an endpoint may use continuously: per run watched there, and at most."""
SLICE = 0.005
"""Work after which other tasks run, s."""

PER_READ, PER_BYTE, PER_EVENT = 20e-6, 5e-9, 50e-6
"""Approximate cost of reading a piece, of a byte in it, and of an event in it, s."""


class TimeBudget:
    """Event loop time for reading the watch of one endpoint: a token bucket that holds `BURST`."""

    def __init__(self, runs: Callable[[], int] = lambda: 1) -> None:
        """`runs`: how many are watched there."""
        self._runs = runs
        self._left = BURST
        self._at: float | None = None
        self._since_pause = 0.0

    def spend(self, seconds: float, now: float) -> float | None:
        """Pause before continuing, s; 0: only yield to other tasks; None: no pause. `now`: monotonic, s."""
        share = min(LARGEST_SHARE, SHARE_OF_A_RUN * max(1, self._runs()))
        if self._at is not None:
            self._left = min(BURST, self._left + (now - self._at) * share)
        self._at = now
        self._left -= seconds
        self._since_pause += seconds
        if self._left < 0:
            self._since_pause = 0.0
            return -self._left / share
        if self._since_pause < SLICE:
            return None
        self._since_pause = 0.0
        return 0.0
