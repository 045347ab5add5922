"""What happened when: the phases of every change, for people and machines.

One event per phase (failure, plan, stop, start, first step), as JSON lines where a file is named.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any, TextIO

logger = logging.getLogger(__name__)


class Timeline:
    """Used from the agent's loop only."""

    def __init__(self, member: str, path: Path | None = None) -> None:
        self._member = member
        self._file: TextIO | None = path.open("a", buffering=1) if path else None
        self._first_step_of = 0
        self.store_trouble = ""
        """The error of the store that was last told; empty: none."""

    def event(self, name: str, **fields: Any) -> None:
        if self._file is not None:
            record = {"time": round(time.time(), 4), "member": self._member, "event": name, **fields}
            try:
                self._file.write(json.dumps(record) + "\n")
            except OSError as error:  # a full disk must not end the training
                logger.warning("no more events are written to %s: %s", self._file.name, error)
                self._file = None

    def progressed(self, epoch: int, step: int) -> None:
        """Notes the first step of an epoch."""
        if epoch != self._first_step_of:
            self._first_step_of = epoch
            self.event("first-step", epoch=epoch, step=step)
            logger.info("plan %d: first step is %d", epoch, step)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
