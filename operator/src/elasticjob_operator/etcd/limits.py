"""What one etcd may take of this process, whoever answers at its address: memory, and time of the event loop. Pure: no
clock, no I/O.

A job's owner chooses the endpoint, so what answers there is judged as an attacker's. The bounds are far above what an
etcd needs, and what goes beyond them costs that endpoint's jobs a condition, and others nothing. Where each is applied:
docs/design/0009-operator-scale.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

LONGEST_HEAD = 16 * 1024
"""Status line and headers of an answer, bytes."""
LONGEST_MESSAGE = 4 * 1024 * 1024
"""An answer's body, or one line of a watch, bytes. etcd takes at most 1.5 MiB at once, which is 2 MiB in base64."""
MOST_PARTS = 200_000
"""Values, keys and brackets of one message. As JSON each may become an object of some 64 bytes, so a message of
`[],[],...` would be twenty times as large in memory. A thousand events in one message have some 10,000."""
SMALL = 64 * 1024
"""What a connection may hold back without asking, bytes."""
LARGE_IN_ALL = 48 * 1024 * 1024
"""What all connections together may hold back beyond that, bytes."""


class TooMuch(Exception):
    """An endpoint sent more than it may. The message is one clause."""


def check_parts(message: bytes | bytearray) -> None:
    """Raises TooMuch where parsing that JSON would cost far more than its length says."""
    if len(message) > MOST_PARTS and message.count(b",") + message.count(b"[") + message.count(b"{") > MOST_PARTS:
        raise TooMuch(f"sends a message of more than {MOST_PARTS} parts")


class Holder(Protocol):
    def cut(self) -> None:
        """Lets go of what it holds, at once."""


class Pool:
    """Memory for large messages, shared by all connections. When it is used up the one that has held its part for the
    longest is cut: an etcd sends even its largest message within moments, and who sends slowly must not keep the
    others' from coming through."""

    def __init__(self, size: int = LARGE_IN_ALL) -> None:
        """`size`: bytes."""
        self._size = size
        self._held: dict[Holder, int] = {}
        self.used = 0

    def hold(self, holder: Holder, amount: int) -> None:
        """`holder` holds so many bytes now. Raises TooMuch where it is the one that is in the way."""
        large = max(0, amount - SMALL)
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
                raise TooMuch("takes too long over a large message")
            victim.cut()

    def let_go(self, holder: Holder) -> None:
        self.used -= self._held.pop(holder, 0)


BURST = 1.0
"""Seconds of the event loop's time that an etcd may take at once."""
SHARE_OF_A_RUN, LARGEST_SHARE = 0.05, 0.5
"""Of the event loop's time, which an etcd may take for long: for each run that is followed there, and at most."""
SLICE = 0.005
"""After so much work, s, others have their turn."""

PER_READ, PER_BYTE, PER_EVENT = 20e-6, 5e-9, 50e-6
"""What a piece that was read costs about, a byte in it, and an event told by it, s."""


class TimeBudget:
    """The event loop's time that reading the watch of one etcd may take. A bucket: it holds `BURST`, and refills by the
    share."""

    def __init__(self, runs: Callable[[], int] = lambda: 1) -> None:
        """`runs`: how many are followed there."""
        self._runs = runs
        self._left = BURST
        self._at: float | None = None
        self._since_pause = 0.0

    def spend(self, seconds: float, now: float) -> float | None:
        """How long to wait before going on, s; 0: others have their turn; None: not at all. `now`: monotonic, s."""
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
