"""The --events file: what happened when, as JSON lines, for people and machines. The schema is in docs/elasticrun.md."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any, TextIO

logger = logging.getLogger(__name__)


class Timeline:
    """Used from the agent's loop only. Raises OSError where the file cannot be opened."""

    def __init__(self, member: str, path: Path | None = None) -> None:
        self._member = member
        self._file: TextIO | None = path.open("a", buffering=1) if path else None

    def event(self, name: str, at: float | None = None, **fields: Any) -> None:
        """`at`: Unix time, s, of what happened; None: now."""
        if self._file is not None:
            moment = time.time() if at is None else at
            record = {"time": round(moment, 4), "member": self._member, "event": name, **fields}
            try:
                self._file.write(json.dumps(record) + "\n")
            except OSError as error:  # a full disk must not end the training
                logger.warning("no more events are written to %s: %s", self._file.name, error)
                self._file = None

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
