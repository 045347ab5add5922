"""torchelastic's error file: the exception that ended a worker, written by the worker itself when it is raised.

torch writes this file only for functions with `@record`; a worker forked from the zygote always does. The format is
torch's (torch 2.15, distributed/elastic/multiprocessing/errors/error_handler.py), so torch's tools can read it. Its
timestamp has whole seconds; the file's modification time is more precise.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from pathlib import Path

from elasticjob_runtime.training import flight_recorder

VARIABLE = "TORCHELASTIC_ERROR_FILE"

_worker = 0
_path: Path | None = None


def enable(worker: int, path: str | None) -> None:
    """Lets the process `worker` write to `path`. Its children do not: their exceptions are the worker's to handle."""
    global _worker, _path
    _worker, _path = worker, Path(path) if path else None


def write(error: BaseException) -> None:
    """Best effort. Keeps what `@record` or a handler of the user wrote before. The flight recorder is written first:
    who sees the error file may read it."""
    if _path is None or os.getpid() != _worker:
        return
    flight_recorder.save(str(_path))
    if _path.exists():
        return
    with contextlib.suppress(OSError):
        partial = _path.with_suffix(".new")
        partial.write_text(json.dumps(content(error)))
        partial.rename(_path)


def content(error: BaseException) -> dict[str, object]:
    callstack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
    return {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}


def read(path: Path | None) -> tuple[str, str] | None:
    """Message and traceback; None if there is no readable error file."""
    if path is None:
        return None
    try:
        message = json.loads(path.read_text())["message"]
        if isinstance(message, str):
            return message, message
        return str(message["message"]), str(message.get("extraInfo", {}).get("py_callstack", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None
