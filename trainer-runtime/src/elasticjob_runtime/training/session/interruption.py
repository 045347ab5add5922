"""Ends whatever this process waits for in a world that is over."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")

LOOK_INTERVAL = 0.0001
"""s between two looks whether something is reached."""

WAIT_INTERVAL = datetime.timedelta(seconds=0.05)
"""How long `Interruption.wait` waits at a time. Each time costs 0.2 ms, and an operation that gloo has lost ends that
much later."""

OVER = "elasticjob: this world is over"
"""In errors of torch, which keep only the text of those of callbacks."""


class OverError(RuntimeError):
    """The world in which this process waited is over."""


class TrialOverError(OverError):
    """This step was a trial, and has done all that takes time."""


class Interruption:
    """Of one world, from the attempt to form it.

    Closing gloo's connections is not enough to end what waits for them: gloo loses an operation that was waiting for
    its receiver, if the connection ends between the receiver's message and the answer to it (tcp/pair.cc: it is taken
    from the queue of pending operations, and not told that writing failed). So the training's thread waits for nothing
    of gloo directly: `run`, `wait` and `guard` end with the world.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_end: list[Callable[[], None]] = []
        self._over = False
        self.silent: Callable[[], bool] = lambda: True
        """Whether gloo has closed all connections of this world, so that it writes to no memory any more."""

    @property
    def over(self) -> bool:
        return self._over

    def end(self) -> None:
        """Any thread may call this, more than once."""
        with self._lock:
            self._over = True
            callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback()

    def wait_for_silence(self, timeout: float) -> bool:
        """Ends the world, and waits until it is silent. False if it is not within `timeout` seconds."""
        self.end()
        until = time.monotonic() + timeout
        while not self.silent():
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def at_end(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, at the end of the world, or now if it is over."""
        with self._lock:
            if not self._over:
                self._at_end.append(callback)
                return
        callback()

    def run(self, function: Callable[[], T], *, discard: Callable[[T], None] = lambda _: None) -> T:
        """What `function` returns or raises; it runs in a thread of its own. Raises OverError when the world is over,
        and leaves the thread to itself: what `function` returns then is given to `discard`."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            if done.done():
                return  # the world is over, and another one may have its process group already
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 for the thread that waits
                with contextlib.suppress(concurrent.futures.InvalidStateError):
                    done.set_exception(error)
                return
            try:
                done.set_result(result)
            except concurrent.futures.InvalidStateError:
                discard(result)

        def interrupt() -> None:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                done.set_exception(OverError(OVER))

        self.at_end(interrupt)
        threading.Thread(target=work, name="elasticjob-in-place", daemon=True).start()
        try:
            return done.result()
        finally:
            self._forget(interrupt)

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Returns when `reached` while the world lasts. Raises OverError when it is over: what is reached then may be
        so because of its end."""
        while True:
            was_reached = reached()
            if self._over:  # read after: what was reached before has nothing to do with the end
                raise OverError(OVER)
            if was_reached:
                return
            time.sleep(LOOK_INTERVAL)

    def wait(self, work: Any) -> None:
        """Waits for the work of a collective, which must not be one on a GPU. Raises OverError if the world is over, or
        what the collective raises.

        Cheaper than `guard`: gloo's thread would call Python for each future, which takes 0.15 ms of processor time.
        """
        while not self._over:
            try:
                work.wait(WAIT_INTERVAL)
                return
            except RuntimeError:
                if work.is_completed():  # it has failed, or is complete only now
                    work.wait()
                    return
        raise OverError(OVER)

    def guard(self, future: torch.futures.Future[Any]) -> torch.futures.Future[Any]:
        """A future that completes with `future`, or fails when the world is over."""
        first: torch.futures.Future[Any] = torch.futures.Future()
        once = threading.Lock()  # a future of torch may be completed only once; never released

        def complete(outcome: Callable[[], Any]) -> None:
            if once.acquire(blocking=False):
                self._forget(interrupt)
                first.set_result(outcome)

        def interrupt() -> None:
            complete(_raise_over)

        self.at_end(interrupt)
        future.add_done_callback(lambda done: complete(done.value))
        return first.then(lambda outcome: outcome.value()())

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._at_end.remove(callback)


def _raise_over() -> Any:
    raise OverError(OVER)
