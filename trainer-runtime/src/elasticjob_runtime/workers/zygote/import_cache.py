"""Caches the list of modules that the script imports next to its checkpoints, so that the next run with the same
packages preloads them from its start.

There is one small file per set of installed packages. It is read and written on separate threads, because the directory
may be on slow storage. Errors are ignored: without the file, the imports are learned again.
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

MAX_BYTES = 1 << 20
"""Longer files are cut off when read."""


def load(directory: str, on_loaded: Callable[[ImportsValue], None]) -> None:
    """Returns at once, and calls `on_loaded` on another thread if `directory` has a readable cache."""

    def read() -> None:
        try:
            with _path(directory).open("rb") as file:
                imports = ImportsValue.from_json(file.read(MAX_BYTES))
        except (OSError, ValueError) as error:
            logger.debug("no cached imports of an earlier run: %s", error)
            return
        on_loaded(imports)

    threading.Thread(target=read, name="imports", daemon=True).start()


def save(directory: str, imports: ImportsValue) -> None:
    """Returns at once."""

    def write() -> None:
        path = _path(directory)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(imports.to_json())
            temporary.rename(path)
        except OSError as error:
            logger.debug("cannot cache the script's imports for the next run: %s", error)
            with contextlib.suppress(OSError):
                temporary.unlink()

    threading.Thread(target=write, name="imports", daemon=True).start()


def _path(directory: str) -> Path:
    """The file for the packages that are installed here. Raises OSError."""
    installed = sorted(
        name for name in os.listdir(sysconfig.get_path("purelib")) if name.endswith((".dist-info", ".egg-info"))
    )
    packages = "\n".join([sys.version, *installed])
    return Path(directory) / f".elasticjob-imports-{hashlib.sha256(packages.encode()).hexdigest()[:16]}.json"
