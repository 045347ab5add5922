"""What an agent sends to its worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class WorkerMessages(Protocol):
    """A message to a worker that is not connected is dropped. No method blocks."""

    def ask_to_save(self, rank: int, seconds: float) -> None:
        """Asks the worker of `rank` to save; it is killed after `seconds`."""

    def send_to(self, local_rank: int, message: Mapping[str, Any]) -> None:
        """Sends a message to the worker of `local_rank` that can continue under another plan."""
