"""What a failed worker says of itself: exit code, signal, traceback.

In order of trust: the error file that `torch.distributed.elastic.multiprocessing.errors.record` writes, the traceback
at the end of its stderr, the exit code.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from pathlib import Path

from elasticjob_runtime.contract import PEER_LOST

_LOST_PEER = re.compile(
    r"Connection closed by peer \[|Application timeout caused pair closure|gloo.{0,300}Connection reset by peer"
    r"|gloo.{0,300}Broken pipe|gloo.{0,300}Timed out waiting"
    r"|ncclRemoteError|remote process exited|NCCL communicator was aborted|Watchdog caught collective operation timeout"
    r"|recvValue failed|sendBytes failed|recvBytes failed|failed to recv, got 0 bytes|Did the remote server shutdown "
    r"or crash",
    re.DOTALL,
)
"""What gloo, NCCL and TCPStore say of a peer that went away (torch 2.4 to 2.15)."""

TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_BYTES = 4096
"""Most of a traceback that is published."""


KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a worker that was killed; and of a shell, as a worker, whose program was."""

OUT_OF_MEMORY = "OutOfMemory"
"""Reason of a failure: the operator's word for a container that ended so."""


def describe(
    exit_code: int, error_file: Path | None, stderr_tail: str, *, out_of_memory: bool = False
) -> tuple[str, str, str]:
    """(reason, message of one line, traceback) of a worker that ended with `exit_code` (negative: by that signal).
    `out_of_memory`: the kernel has killed for lack of memory meanwhile."""
    if out_of_memory and exit_code in KILLED:
        how = "killed by SIGKILL, out of memory: raise the container's memory limit, or let the script use less"
        return OUT_OF_MEMORY, how, _tail(stderr_tail)
    reason, message, traceback = _described(exit_code, error_file, stderr_tail)
    aborted = exit_code == -signal.SIGABRT  # NCCL's watchdog ends a process so
    lost = (exit_code > 0 or aborted) and lost_peer(f"{message}\n{traceback}")
    return PEER_LOST if lost else reason, message, traceback


def lost_peer(text: str) -> bool:
    """Does this error tell of a peer that is gone? Then the peer's own failure came first, or its node's."""
    return _LOST_PEER.search(text) is not None


def _described(exit_code: int, error_file: Path | None, stderr_tail: str) -> tuple[str, str, str]:
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
    """Unix time of the failure itself. Python takes a while from the exception to its end, in which peers notice and
    fail too: by the ends alone, the wrong rank would be the first.

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
