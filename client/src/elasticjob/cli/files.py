"""Writing files: nothing is overwritten without asking."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from elasticjob.errors import AlreadyExistsError, ElasticJobError


def write(file: Path, content: bytes, *, force: bool) -> None:
    """Asks on a terminal. Raises AlreadyExistsError, ElasticJobError."""
    if file.exists() and not force:
        if not sys.stdin.isatty():
            raise AlreadyExistsError(f"{file} exists already.", "Choose another name, or overwrite it with --force.")
        if not typer.confirm(f"{file} exists already. Overwrite it?"):
            raise AlreadyExistsError(f"{file} is left as it is.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        raise ElasticJobError(f"Cannot write {file}: {error.strerror}.") from error
