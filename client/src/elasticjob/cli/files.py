"""Reading and writing files: nothing is overwritten without asking, and no file is written in part."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from elasticjob.errors import AlreadyExistsError, ElasticJobError, UsageError

STANDARD_STREAM = "-"


def read(
    file: str, *, missing: type[ElasticJobError] = UsageError, unreadable: type[ElasticJobError] = UsageError
) -> tuple[str, str]:
    """Its text, and what messages call it. Raises `missing` if there is no such file, `unreadable` if there is one."""
    called = "standard input" if file == STANDARD_STREAM else file
    try:
        if file == STANDARD_STREAM:
            return sys.stdin.read(), called
        return Path(file).read_text(encoding="utf-8-sig"), called
    except FileNotFoundError:
        raise missing(f"There is no file {file}.") from None
    except UnicodeDecodeError:
        raise unreadable(f"Cannot read {called}: it is not UTF-8 text.") from None
    except OSError as error:
        raise unreadable(f"Cannot read {file}: {error.strerror}.") from None


def write(file: Path, content: bytes, *, force: bool) -> None:
    """Asks on a terminal. Raises AlreadyExistsError, ElasticJobError."""
    if file.exists() and not force:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise AlreadyExistsError(f"{file} exists already.", "Choose another name, or overwrite it with --force.")
        if not typer.confirm(f"{file} exists already. Overwrite it?", err=True):
            raise AlreadyExistsError(f"{file} was not overwritten.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, content)
    except OSError as error:
        raise ElasticJobError(f"Cannot write {file}: {error.strerror}.") from error


def _replace(file: Path, content: bytes) -> None:
    """As a whole or not at all."""
    if file.exists() and not file.is_file():  # /dev/stdout and the like
        file.write_bytes(content)
        return
    file = file.resolve()  # what a link points to, not the link
    import tempfile  # slow, and only files need it

    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(file.stat().st_mode & 0o777 if file.exists() else 0o666 & ~mask)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
