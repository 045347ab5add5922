"""torchelastic's error file: what a worker says of the exception that ended it, written at that moment and not when the
process is gone.

torch writes it for functions with `@record` only; a worker that was forked from the zygote always does. The format is
torch's (torch 2.15, distributed/elastic/multiprocessing/errors/error_handler.py), so its tools read it; the time in
fractions of a second is the file's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from pathlib import Path

VARIABLE = "TORCHELASTIC_ERROR_FILE"

_worker = 0
_path: Path | None = None


def write_for(worker: int, path: str | None) -> None:
    """Only the process `worker` writes, to `path`: what a child of it raises is its parent's business."""
    global _worker, _path
    _worker, _path = worker, Path(path) if path else None


def write(error: BaseException) -> None:
    """Best effort. Keeps what `@record`, or a handler of the user's, wrote before."""
    if _path is None or os.getpid() != _worker or _path.exists():
        return
    with contextlib.suppress(OSError):
        partial = _path.with_suffix(".new")
        partial.write_text(json.dumps(content(error)))
        partial.rename(_path)


def content(error: BaseException) -> dict[str, object]:
    callstack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
    return {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
