"""Describes the failure of a worker, from the most to the least reliable source: its error file, the traceback at the
end of its stderr, its exit code."""

from __future__ import annotations

import itertools
import re
import signal
from pathlib import Path

from elasticjob_runtime.contract import MISMATCH, PEER_LOST
from elasticjob_runtime.workers import error_file as error_files

_LOST_PEER = re.compile(
    r"Connection closed by peer \[|Application timeout caused pair closure|gloo.{0,300}Connection reset by peer"
    r"|gloo.{0,300}Broken pipe|gloo.{0,300}Timed out waiting"
    r"|ncclRemoteError|remote process exited|NCCL communicator was aborted|Watchdog caught collective operation timeout"
    r"|recvValue failed|sendBytes failed|recvBytes failed|failed to recv, got 0 bytes|Did the remote server shutdown "
    r"or crash",
    re.DOTALL,
)
"""Errors of gloo, NCCL and TCPStore when a peer is gone (torch 2.4 to 2.15)."""

_MISMATCH = re.compile(
    r"gloo::EnforceNotMet|distributed collective mismatch|mismatch between collectives", re.IGNORECASE
)
"""What gloo and torch say if ranks call different collectives."""

TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_BYTES = 4096
"""Longer tracebacks are cut to their end when they are published."""

KILL_EXIT_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a worker that was killed, and of a shell script whose program was."""

SIGNAL = "Signal"
"""Failure reason: a signal ended the worker."""

OUT_OF_MEMORY = "OutOfMemory"
"""Failure reason; the operator uses it for containers that ran out of memory, too."""


def describe(
    exit_code: int, error_file: Path | None, stderr_tail: str, *, out_of_memory: bool | None = None
) -> tuple[str, str, str]:
    """Returns (reason, one-line message, traceback) for a worker that ended with `exit_code`; negative: by that signal.

    `out_of_memory`: whether the kernel's OOM killer was active while the worker ran; None: unknown.
    """
    if out_of_memory and exit_code in KILL_EXIT_CODES:
        how = "killed by SIGKILL, out of memory: raise the container's memory limit, or let the script use less"
        return OUT_OF_MEMORY, how, _tail(stderr_tail)
    reason, message, traceback = _described(exit_code, error_file, stderr_tail)
    if out_of_memory is None and reason == SIGNAL and exit_code == -signal.SIGKILL:
        message += " (out of memory?)"
    aborted = exit_code == -signal.SIGABRT  # by NCCL's watchdog
    lost = (exit_code > 0 or aborted) and lost_peer(f"{message}\n{traceback}")
    if (exit_code > 0 or aborted) and _MISMATCH.search(f"{message}\n{traceback}"):
        return MISMATCH, f"{message}: ranks called different collectives, or with other sizes", traceback
    return PEER_LOST if lost else reason, message, traceback


def lost_peer(text: str) -> bool:
    """Whether an error means that a peer is gone. Then the peer, or its node, failed first."""
    return _LOST_PEER.search(text) is not None


def _described(exit_code: int, error_file: Path | None, stderr_tail: str) -> tuple[str, str, str]:
    recorded = error_files.read(error_file)
    if recorded is not None:
        message, traceback = recorded
        return "ApplicationError", _line(message), _tail(traceback)
    traceback = last_traceback(stderr_tail)
    if exit_code < 0:
        name = signal_name(-exit_code)
        return SIGNAL, f"killed by {name}", _tail(traceback or stderr_tail)
    if traceback:
        return "ApplicationError", _line(traceback.rstrip().rsplit("\n", 1)[-1]), _tail(traceback)
    last = stderr_tail.strip().rsplit("\n", 1)[-1]
    return "ApplicationError", _line(f"exit code {exit_code}" + (f": {last}" if last else "")), _tail(stderr_tail)


def happened_at(exit_code: int, error_file: Path | None, traceback_at: float | None, ended_at: float) -> float:
    """Unix time of the failure.

    From an exception to its exit, a Python process takes a while, in which peers notice and fail too: going by exit
    times, the wrong rank would have failed first.

    `traceback_at`: when a traceback last appeared in its stderr; `ended_at`: when its exit was noticed.
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
    """The last Python traceback in `text`, up to its exception's message; empty if there is none."""
    start = text.rfind(TRACEBACK)
    if start < 0:
        return ""
    header, *lines = text[start:].splitlines()
    frames = list(itertools.takewhile(lambda line: line.startswith(" ") or not line, lines))
    return "\n".join([header, *frames, *lines[len(frames) : len(frames) + 1]])


def _line(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first[:500]


def _tail(text: str) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= TRACEBACK_BYTES else "..." + data[-TRACEBACK_BYTES + 3 :].decode(errors="ignore")
