"""What the script's workers import, kept beside the checkpoints: the next run with the same packages knows it from its
start.

One small file per set of installed packages. Best effort: it is read and written on threads of their own, since the
folder may be on a disk that answers late, and whatever is wrong with it costs no more than that the imports are learned
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

from elasticjob_runtime.contract import ImportsValue

logger = logging.getLogger(__name__)

LARGEST = 1 << 20
"""Bytes: nothing larger is read."""


def load(directory: str, then: Callable[[ImportsValue], None]) -> None:
    """Calls `then`, on another thread, with what is kept there, if there is something."""

    def read() -> None:
        try:
            with _path(directory).open("rb") as file:
                found = ImportsValue.from_json(file.read(LARGEST))
        except (OSError, ValueError) as error:
            logger.debug("no imports are known from earlier runs: %s", error)
            return
        then(found)

    threading.Thread(target=read, name="imports", daemon=True).start()


def save(directory: str, imports: ImportsValue) -> None:
    """Returns at once."""

    def write() -> None:
        path = _path(directory)
        aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(imports.to_json())
            aside.rename(path)
        except OSError as error:
            logger.debug("what the script imports is not kept for the next run: %s", error)
            with contextlib.suppress(OSError):
                aside.unlink()

    threading.Thread(target=write, name="imports", daemon=True).start()


def _path(directory: str) -> Path:
    """Another image has other packages, and a file of its own. Raises OSError."""
    installed = sorted(
        name for name in os.listdir(sysconfig.get_path("purelib")) if name.endswith((".dist-info", ".egg-info"))
    )
    told = "\n".join([sys.version, *installed])
    return Path(directory) / f".elasticjob-imports-{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"
