"""Whether a checkpoint is intact: its file, and if that is the manifest of a sharded one, its shards."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

from elasticjob_runtime.training.checkpoint import format as file_format
from elasticjob_runtime.training.checkpoint import manifest
from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError

_known: set[tuple[int, ...]] = set()
"""The files that were written by this training, or read completely, as they were then."""


def remember(file: pathlib.Path | BinaryIO) -> None:
    """This file is intact."""
    with contextlib.suppress(OSError):
        _known.add(_identity(file))


@contextlib.contextmanager
def opened(path: pathlib.Path, step: int) -> Iterator[tuple[BinaryIO, file_format.Footer]]:
    """Opens a checkpoint and verifies this file completely. Raises CorruptCheckpointError, OSError."""
    with open(path, "rb") as file:
        footer = file_format.read_footer(file)
        if footer.step != step:
            raise CorruptCheckpointError(f"it says that it is of step {footer.step}")
        file_format.verify(file, footer)
        remember(file)
        yield file, footer


def verify(path: pathlib.Path, step: int, *, read_shards: bool = True) -> None:
    """Reads all of a checkpoint, also its shards, but no file that is known to be intact.

    read_shards: False compares only the sizes of shards, which may have terabytes. Raises CorruptCheckpointError,
    OSError.
    """
    if not _is_known(path):
        with opened(path, step):
            pass
    found = manifest.read(path)
    for file, about in manifest.files_of(path.parent, found) if found is not None else ():
        if _is_known(file):
            continue
        if problem := manifest.damage(file, *about, read=read_shards):
            raise CorruptCheckpointError(f"{file.parent.name}/{file.name} {problem}")
        if read_shards:
            remember(file)


def _is_known(file: pathlib.Path) -> bool:
    try:
        return _identity(file) in _known
    except OSError:
        return False


def _identity(file: pathlib.Path | BinaryIO) -> tuple[int, ...]:
    about = os.stat(file) if isinstance(file, pathlib.Path) else os.fstat(file.fileno())
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
