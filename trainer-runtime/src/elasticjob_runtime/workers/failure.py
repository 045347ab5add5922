"""What a failed worker says of itself: exit code, signal, traceback.

In order of trust: the error file that `torch.distributed.elastic.multiprocessing.errors.record` writes, the traceback at the end of its
stderr, the exit code.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_BYTES = 4096
"""Most of a traceback that is published."""


def describe(exit_code: int, error_file: Path | None, stderr_tail: str) -> tuple[str, str, str]:
    """(reason, message of one line, traceback) of a worker that ended with `exit_code` (negative: by that signal)."""
    recorded = _recorded(error_file)
    if recorded is not None:
        message, traceback = recorded
        return "ApplicationError", _line(message), _tail(traceback)
    traceback = last_traceback(stderr_tail)
    if exit_code < 0:
        name = signal_name(-exit_code)
        return "Signal", f"killed by {name}" + _hint(-exit_code), _tail(traceback or stderr_tail)
    if traceback:
        return "ApplicationError", _line(traceback.rstrip().rsplit("\n", 1)[-1]), _tail(traceback)
    last = stderr_tail.strip().rsplit("\n", 1)[-1]
    return "ApplicationError", _line(f"exit code {exit_code}" + (f": {last}" if last else "")), _tail(stderr_tail)


def happened_at(exit_code: int, error_file: Path | None, traceback_at: float | None, ended_at: float) -> float:
    """Unix time of the failure itself. Python takes a while from the exception to its end, in which peers notice and fail too:
    by the ends alone, the wrong rank would be the first.

    `traceback_at`: when a traceback last came out of its stderr; `ended_at`: when the process was seen to have ended.
    """
    moments = [ended_at]
    if error_file is not None and error_file.exists():
        moments.append(error_file.stat().st_mtime)
    if exit_code > 0 and traceback_at is not None:
        moments.append(traceback_at)
    return min(moments)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_traceback(text: str) -> str:
    """The last Python traceback in `text`, up to its exception's message; empty where there is none."""
    start = text.rfind(TRACEBACK)
    if start < 0:
        return ""
    header, *lines = text[start:].splitlines()
    frames = list(itertools.takewhile(lambda line: line.startswith(" ") or not line, lines))
    return "\n".join([header, *frames, *lines[len(frames) : len(frames) + 1]])


def _recorded(error_file: Path | None) -> tuple[str, str] | None:
    """Message and traceback of torch's error file; None where there is none that can be read."""
    if error_file is None:
        return None
    try:
        message = json.loads(error_file.read_text())["message"]
        if isinstance(message, str):
            return message, message
        return str(message["message"]), str(message.get("extraInfo", {}).get("py_callstack", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hint(number: int) -> str:
    return " (out of memory? the kernel kills with it)" if number == signal.SIGKILL else ""


def _line(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first[:500]


def _tail(text: str) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= TRACEBACK_BYTES else "..." + data[-TRACEBACK_BYTES + 3 :].decode(errors="ignore")


def exit_code_of(status: int) -> int:
    """Exit code of a wait status: negative for a signal."""
    return os.waitstatus_to_exitcode(status)
