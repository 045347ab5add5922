"""torchelastic's watchdog: kills a worker that does not finish a block in time
(`torch.distributed.elastic.timer.expires`).

The environment is torchrun's: TORCHELASTIC_ENABLE_FILE_TIMER=1 enables it, and TORCHELASTIC_TIMER_FILE is the named
pipe that workers write to (torch 2.15, distributed/elastic/timer/file_based_local_timer.py: one line of JSON per
request; a negative time cancels one). Unlike torchrun, which then exits too, only the worker is killed, and the group
restarts as after any failure.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping

from elasticjob_runtime.event_loop import EventLoop

logger = logging.getLogger(__name__)

ENABLE, FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"

_MAX_LINE = 65536


class TimerServer:
    """Reads requests from the pipe; `tick` signals the workers whose timers have expired. Does nothing unless the
    environment enables it."""

    def __init__(
        self, environment: Mapping[str, str], folder: str, event_loop: EventLoop, is_ours: Callable[[int], bool]
    ) -> None:
        """`is_ours`: whether a process may be killed. Raises OSError if the pipe cannot be made."""
        self._event_loop = event_loop
        self._is_ours = is_ours
        self._rest = b""
        self._timers: dict[tuple[int, str], tuple[float, int]] = {}
        """(process, scope) -> (unix time, signal)."""
        self._fd: int | None = None
        self._path = environment.get(FILE) or os.path.join(folder, "watchdog")
        if environment.get(ENABLE) == "1":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.mkfifo(self._path)
            # Open for writing too, or else the pipe would end whenever a client closes it.
            self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
            event_loop.add_reader(self._fd, self._read)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which workers find the pipe."""
        return {FILE: self._path} if self._fd is not None else {}

    @property
    def deadline(self) -> float | None:
        """Monotonic time at which the next timer expires."""
        if not self._timers:
            return None
        return time.monotonic() + min(at for at, _ in self._timers.values()) - time.time()

    def tick(self, _now: float) -> None:
        now = time.time()
        for key in [key for key, (at, _) in self._timers.items() if at <= now]:
            pid, scope = key
            _, number = self._timers.pop(key)
            if number > 0 and self._is_ours(pid):
                logger.warning("timer %r of process %d expired, sending signal %d", scope, pid, number)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def close(self) -> None:
        if self._fd is not None:
            self._event_loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _read(self) -> None:
        assert self._fd is not None
        with contextlib.suppress(BlockingIOError):
            *lines, self._rest = (self._rest + os.read(self._fd, _MAX_LINE)).split(b"\n")
            self._rest = self._rest[-_MAX_LINE:]
            for line in lines:
                self._handle(line)

    def _handle(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            key = (int(request["pid"]), str(request["scope_id"]))
            at, number = float(request["expiration_time"]), int(request["signal"])
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("ignoring an invalid timer request: %r", error)
            return
        if at < 0:
            self._timers.pop(key, None)
        else:
            self._timers[key] = (at, number)
