"""The agent's way to the store: one action at a time, tried again with growing pauses while the store is out of
reach."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elasticjob_runtime.contract import ExitCode
from elasticjob_runtime.etcd.interface import Denied, Full, NotEtcd, StoreError, is_final
from elasticjob_runtime.membership.actions import (
    Exit,
    PublishFailure,
    StoreAction,
)
from elasticjob_runtime.rendezvous.session import PlanOutdatedError

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between tries while the store is out of reach; the last one repeats."""


REFUSED_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The same while it answers, and refuses."""


def retry_pause(error: StoreError, tries: int) -> float:
    """s before the next try, after `tries` that failed before this one."""
    pauses = REFUSED_SECONDS if is_final(error) else RETRY_SECONDS
    return pauses[min(tries, len(pauses) - 1)]


def what_it_means(error: StoreError) -> str:
    """The trouble in a few words, for the person who has to do something about it."""
    match error:
        case Denied():
            return "etcd refuses this member"
        case Full():
            return "etcd takes no writes"
        case NotEtcd():
            return "no etcd 3.4 or newer at the endpoint"
        case _:
            return "etcd does not take what this member writes" if is_final(error) else "rendezvous out of reach"


class StoreExecutor:
    """On the agent's loop only."""

    def __init__(
        self,
        submit: Callable[[StoreAction], None],
        on_trouble: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_trouble` gets the trouble whenever it changes; empty: the store answers again."""
        self._submit = submit
        self._on_trouble = on_trouble
        self._clock = clock
        self._busy = False
        self._retry_at = 0.0
        self._tries = 0
        self.trouble = ""
        """The error that was last told; empty: none."""
        self.reported_failure = 0
        """Round of the last failure that was published."""
        self.fatal: Exit | None = None
        """What no further try can help."""

    def execute(self, action: StoreAction, now: float, until: float) -> float:
        """Returns until when to wait. `done` follows, if it was begun."""
        if self._busy:
            return until
        if now < self._retry_at:
            return min(until, self._retry_at)
        self._busy = True
        self._submit(action)
        return until

    def done(self, action: StoreAction, error: StoreError | None, *, started: bool) -> None:
        """`started`: workers have run. Then nothing the store says ends this agent."""
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
            self.tell_trouble(error)

    def tell_trouble(self, error: StoreError | None) -> None:
        """None: it answers."""
        text = str(error) if error else ""
        if text != self.trouble:
            self.trouble = text
            self._on_trouble(text)
            if error:
                logger.warning("%s: %s (trying again; running workers go on)", what_it_means(error), error)
            else:
                logger.info("rendezvous reached again")
