"""Saves that go on in a thread while the training continues: one at a time. Standard library only.

The thread is not a daemon: a process that ends by itself ends after its save, and with exit code 1 if that has failed.
One that is killed leaves a checkpoint that is not there, as in any other save.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from elasticjob_runtime.contract import Env

logger = logging.getLogger("elasticjob_runtime.training")


class Save:
    """One save in a thread."""

    def __init__(self, step: int, function: Callable[[], object]) -> None:
        self.began = time.monotonic()
        self.step = step
        self._function = function
        self._error: Exception | None = None
        self._fence = os.environ.get(Env.FENCE)
        self._pid = os.getpid()
        self._over = threading.Event()
        """A thread whose `join` a signal handler has ended with an exception is no longer known to be alive."""
        threading.Thread(target=self._run, name="elasticjob-save").start()

    @property
    def is_over(self) -> bool:
        """Also in a forked child, which has no such thread."""
        return self._over.is_set() or self._pid != os.getpid()

    def wait(self, timeout: float | None = None) -> None:
        if not self.is_over:
            self._over.wait(timeout)

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
            logger.error("The checkpoint of step %d was not saved: %s", self.step, error)
            self._error = error
        finally:
            self._over.set()


_saves: list[Save] = []
"""Of this process, that may not be over."""


def begin(step: int, function: Callable[[], object]) -> Save:
    """step: for messages."""
    atexit.unregister(_fail_if_the_last_failed)
    atexit.register(_fail_if_the_last_failed)
    save = Save(step, function)
    _saves[:] = [*(other for other in _saves if not other.is_over), save]
    return save


def wait_for_saves(since: float, timeout: float) -> None:
    """Waits for those that began after `since` (monotonic time)."""
    until = time.monotonic() + timeout
    for save in _saves:
        if save.began >= since:
            save.wait(max(0.0, until - time.monotonic()))


def _fail_if_the_last_failed() -> None:
    """At the end of the process: no later save raises the error any more, and a job whose last state is lost must not
    succeed. Exit functions cannot change the exit code, so this one ends the process."""
    for save in _saves:
        try:
            save.result()
        except Exception as error:  # noqa: BLE001 whatever it is, it is the reason of the exit code
            _record(error)
            logging.shutdown()
            sys.stdout.flush()
            os._exit(1)


def _record(error: Exception) -> None:
    """Leaves the reason where torch's launchers and ours look for it, unless the script has failed before."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if "torch" in sys.modules and file and not os.path.exists(file):
        from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

        ErrorHandler().record_exception(error)
