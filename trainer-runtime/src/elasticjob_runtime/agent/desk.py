"""The agent's way to the store: one action at a time, tried again with growing pauses while the store is out of reach."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elasticjob_runtime.agent.rendezvous import PlanOutdatedError
from elasticjob_runtime.contract import ExitCode
from elasticjob_runtime.etcd.port import Denied, NotEtcd, StoreError
from elasticjob_runtime.membership.model import Exit, PublishFailure, StoreAction

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between tries while the store is out of reach; the last one repeats."""


class StoreDesk:
    """On the agent's loop only."""

    def __init__(self, submit: Callable[[StoreAction], None], on_trouble: Callable[[str], None]) -> None:
        """`on_trouble` gets the trouble whenever it changes; empty: the store answers again."""
        self._submit = submit
        self._on_trouble = on_trouble
        self._busy = False
        self._retry_at = 0.0
        self._tries = 0
        self.trouble = ""
        """The error that was last told; empty: none."""
        self.reported_failure = 0
        """Epoch of the last failure that was published."""
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
                self.reported_failure = action.failure.epoch
        elif isinstance(error, PlanOutdatedError):
            logger.info("%s", error)
        elif isinstance(error, Denied | NotEtcd) and not started:
            denied = isinstance(error, Denied)
            reason = str(error) if denied else f"no etcd 3.4 or newer at the endpoint: {error}"
            self.fatal = Exit(code=ExitCode.DENIED if denied else ExitCode.UNAVAILABLE, reason=reason)
        else:
            self._retry_at = time.monotonic() + RETRY_SECONDS[min(self._tries, len(RETRY_SECONDS) - 1)]
            self._tries += 1
            self.tell_trouble(error)

    def tell_trouble(self, error: StoreError | None) -> None:
        """None: it answers."""
        text = str(error) if error else ""
        if text != self.trouble:
            self.trouble = text
            self._on_trouble(text)
            if error:
                logger.warning("rendezvous out of reach: %s (trying again; running workers go on)", error)
            else:
                logger.info("rendezvous reached again")
