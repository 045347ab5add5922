"""torchelastic's watchdog: ends a worker that asked to be ended if it is not done in time
(`torch.distributed.elastic.timer.expires`).

The environment is torchrun's: TORCHELASTIC_ENABLE_FILE_TIMER=1 turns it on, TORCHELASTIC_TIMER_FILE is the named pipe
on which workers ask (torch 2.15, distributed/elastic/timer/file_based_local_timer.py: a line of JSON for each request,
a negative time takes one back). Unlike torchrun, which then ends itself too, only the worker is ended; the group
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

_LONGEST = 65536


class TimerServer:
    """Reads requests from the pipe; `tick` ends whoever's time is over. Does nothing unless the environment asks for
    it."""

    def __init__(
        self, environment: Mapping[str, str], folder: str, event_loop: EventLoop, is_ours: Callable[[int], bool]
    ) -> None:
        """`is_ours`: may this process be ended? Raises OSError where the pipe cannot be made."""
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
            self._fd = os.open(
                self._path, os.O_RDWR | os.O_NONBLOCK
            )  # writing too: else every client that closes would be the pipe's end
            event_loop.add_reader(self._fd, self._read)

    @property
    def environment(self) -> dict[str, str]:
        """What workers need to find it."""
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
                logger.warning("timer %r of process %d has expired: signal %d", scope, pid, number)
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
            *lines, self._rest = (self._rest + os.read(self._fd, _LONGEST)).split(b"\n")
            self._rest = self._rest[-_LONGEST:]
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            key = (int(request["pid"]), str(request["scope_id"]))
            at, number = float(request["expiration_time"]), int(request["signal"])
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("a timer request that cannot be read: %r", error)
            return
        if at < 0:
            self._timers.pop(key, None)
        else:
            self._timers[key] = (at, number)
