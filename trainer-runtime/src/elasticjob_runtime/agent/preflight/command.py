"""Runs a site's own check, for a bounded time and with bounded output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence

MOST_OUTPUT = 4096
"""Last bytes of the output that are looked at."""
MOST_LINE = 200
"""Characters of its last line that are kept."""
_POLL_SECONDS = 0.1
_NOT_FOUND = 127


def run(command: Sequence[str], seconds: float) -> str | None:
    """Runs `command` for at most `seconds`. Returns why the check fails; None: it exited with code 0."""
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        process = _start(command, write)
    except OSError as error:
        os.close(read)
        return f"exit code {_NOT_FOUND}: {command[0]} cannot be run ({error.strerror}). Name a program of the image"
    finally:
        os.close(write)
    try:
        output, done = _watch(process, read, time.monotonic() + seconds)
    finally:
        os.close(read)
        _kill(process)
    last = _last_line(output)
    if not done:
        return ": ".join(filter(None, (f"not done after {seconds:g} s", last)))
    return _explained(process.returncode, last)


def _start(command: Sequence[str], write: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=write, stderr=write, start_new_session=True)


def _watch(process: subprocess.Popen[bytes], read: int, deadline: float) -> tuple[bytes, bool]:
    """The end of its output, and whether it has ended by the deadline. What it started may outlive it, and is not
    waited for."""
    output, is_open, poll = b"", True, select.poll()
    poll.register(read, select.POLLIN)
    while True:
        ended = process.poll() is not None
        rest = max(0.0, deadline - time.monotonic())
        pause = 0.0 if ended else min(_POLL_SECONDS, rest)
        readable = is_open and bool(poll.poll(1000 * pause))
        if readable:
            data = os.read(read, 65_536)
            is_open = bool(data)
            output = (output + data)[-MOST_OUTPUT:]
        if ended and not (readable and is_open):
            return output, True
        if not rest:
            return output, ended
        if not is_open:
            time.sleep(pause)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Its process group: also what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _explained(code: int, last: str) -> str | None:
    if code == 0:
        return None
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    hint = "a program that it runs was not found" if code == _NOT_FOUND else ""
    return ": ".join(filter(None, (how, last or hint)))


def _last_line(output: bytes) -> str:
    """Without what cannot be printed: others read it in conditions, Events and terminals, and etcd's values have no
    NUL."""
    text = "".join(char if char.isprintable() or char in "\n\r" else " " for char in output.decode(errors="replace"))
    lines = text.strip().splitlines()
    return lines[-1].strip()[:MOST_LINE] if lines else ""
