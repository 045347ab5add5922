"""The port to the agent's event loop that workers are attached to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Reactor(Protocol):
    """What waits for file descriptors."""

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None: ...

    def remove_reader(self, fd: int) -> None: ...

    def now(self) -> float:
        """Monotonic time, s."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Runs `call` on the loop's thread. Thread-safe."""
