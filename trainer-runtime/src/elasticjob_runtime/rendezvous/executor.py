"""Executes store actions one at a time, and retries with growing delays while the store is unreachable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elasticjob_runtime.contract import ExitCode
from elasticjob_runtime.etcd.interface import Denied, Full, NotEtcd, StoreError, is_final
from elasticjob_runtime.membership.actions import Exit, PublishFailure, StoreAction
from elasticjob_runtime.rendezvous.plan_writer import PlanOutdatedError

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Delays between attempts while the store is unreachable; the last one repeats."""


REFUSED_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Delays between attempts while the store answers with a permanent error (`is_final`); the last one repeats."""


def retry_pause(error: StoreError, tries: int) -> float:
    """s to wait before the next attempt. `tries`: how many attempts failed before this one."""
    pauses = REFUSED_SECONDS if is_final(error) else RETRY_SECONDS
    return pauses[min(tries, len(pauses) - 1)]


def describe_error(error: StoreError) -> str:
    """Describes the error in a few words, for the person who has to fix it."""
    match error:
        case Denied():
            return "etcd refuses this member"
        case Full():
            return "etcd takes no writes"
        case NotEtcd():
            return "no etcd 3.4 or newer at the endpoint"
        case _:
            return "etcd does not take what this member writes" if is_final(error) else "etcd is unreachable"


class StoreExecutor:
    """Not thread-safe: use it on the agent's event loop only."""

    def __init__(
        self,
        submit: Callable[[StoreAction], None],
        on_trouble: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_trouble` is called with the current error's text whenever it changes; empty: the store works again."""
        self._submit = submit
        self._on_trouble = on_trouble
        self._clock = clock
        self._busy = False
        self._retry_at = 0.0
        self._tries = 0
        self.trouble = ""
        """The error that was last passed to `on_trouble`; empty: none."""
        self.reported_failure = 0
        """The round of the last published failure."""
        self.fatal: Exit | None = None
        """Set by an error that no retry can fix."""

    def execute(self, action: StoreAction, now: float, until: float) -> float:
        """Returns the time until which to wait. If the action was submitted, a call of `done` follows."""
        if self._busy:
            return until
        if now < self._retry_at:
            return min(until, self._retry_at)
        self._busy = True
        self._submit(action)
        return until

    def done(self, action: StoreAction, error: StoreError | None, *, started: bool) -> None:
        """`started`: workers have run. From then on no store error ends this agent."""
        self._busy = False
        if error is None:
            self._tries = 0
            if isinstance(action, PublishFailure):
                self.reported_failure = action.failure.round
        elif isinstance(error, PlanOutdatedError):
            logger.info("%s", error)
        elif isinstance(error, Denied | NotEtcd) and not started:
            denied = isinstance(error, Denied)
            reason = str(error) if denied else f"no etcd 3.4 or newer at the endpoint: {error}"
            self.fatal = Exit(code=ExitCode.DENIED if denied else ExitCode.UNAVAILABLE, reason=reason)
        else:
            self._retry_at = self._clock() + retry_pause(error, self._tries)
            self._tries += 1
            self.report_trouble(error)

    def report_trouble(self, error: StoreError | None) -> None:
        """`error` None: the store works."""
        text = str(error) if error else ""
        if text != self.trouble:
            self.trouble = text
            self._on_trouble(text)
            if error:
                logger.warning("%s: %s (retrying; running workers continue)", describe_error(error), error)
            else:
                logger.info("etcd is reachable again")
