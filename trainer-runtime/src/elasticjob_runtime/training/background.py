"""Saves that go on in a thread while the training continues: one at a time. Standard library only.

The thread is not a daemon: a process that ends by itself ends after its save. One that is killed leaves a checkpoint
that is not there, as in any other save.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from elasticjob_runtime.contract import Env

logger = logging.getLogger("elasticjob_runtime.training")


class Save:
    """One save in a thread."""

    def __init__(self, step: int, function: Callable[[], object]) -> None:
        self.began = time.monotonic()
        self._step = step
        self._function = function
        self._error: Exception | None = None
        self._fence = os.environ.get(Env.FENCE)
        self._thread = threading.Thread(target=self._run, name="elasticjob-save")
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def result(self) -> None:
        """Waits for its end. Raises what made it fail, once, unless the worker group is another one now: then it may
        fail because a later one saves there."""
        self.wait()
        error, self._error = self._error, None
        if error is not None and self._fence == os.environ.get(Env.FENCE):
            raise error

    def _run(self) -> None:
        try:
            self._function()
        except Exception as error:  # noqa: BLE001 raised again by `result`, if that is called
            logger.error("The checkpoint of step %d was not saved: %s", self._step, error)
            self._error = error


_saves: list[Save] = []
"""Of this process, that may not be over."""


def begin(step: int, function: Callable[[], object]) -> Save:
    """step: for messages."""
    save = Save(step, function)
    _saves[:] = [*(each for each in _saves if not each.is_over), save]
    return save


def wait_for_saves(since: float, timeout: float) -> None:
    """Waits for those that began after `since` (monotonic time)."""
    until = time.monotonic() + timeout
    for each in _saves:
        if each.began >= since:
            each.wait(max(0.0, until - time.monotonic()))
