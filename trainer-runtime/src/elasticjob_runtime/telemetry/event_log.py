"""The --events file: what happened when, as JSON lines. docs/reference/elasticrun.md has the schema."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from elasticjob_runtime.workers.async_writer import AsyncWriter, File

logger = logging.getLogger(__name__)


class EventLog:
    """Used from the agent's loop only, which never waits for the file: an AsyncWriter writes it. Raises OSError if the
    file cannot be opened."""

    def __init__(self, member: str, path: Path | None = None) -> None:
        self._member = member
        self._path = path
        self._file = File(path, self._failed) if path else None
        self._writer = AsyncWriter(stall_timeout=None)
        if path is not None and not path.parent.is_dir():  # a typo in the flag must not create directories
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if self._file is not None:
            self._file.fileno()

    def event(self, name: str, at: float | None = None, **fields: Any) -> None:
        """`at`: Unix time of the event, s; None: now."""
        if self._file is not None:
            moment = time.time() if at is None else at
            record = {"time": round(moment, 4), "member": self._member, "event": name, **fields}
            self._writer.put(self._file, (json.dumps(record) + "\n").encode())

    def close(self, timeout: float = 5.0) -> None:
        """Returns when everything is written, or there was no progress for `timeout` s."""
        file = self._file
        if self.flush(timeout) and file is not None:
            file.close()

    def flush(self, timeout: float = 5.0) -> bool:
        """Waits like `close`. Returns whether everything is written."""
        return self._writer.flush(timeout)

    def _failed(self, error: OSError) -> None:
        """A full disk must not end the training."""
        logger.warning("cannot write to %s, no more events are recorded: %s", self._path, error)
        self._file = None
