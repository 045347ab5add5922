"""Measures how fast the local worker processes are, tells the other members, and on rank 0's agent names the ranks that
are slow."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from elasticjob_runtime.agent.pace import PaceMeter
from elasticjob_runtime.contract import PaceValue, StragglersValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.stragglers import StragglerSettings, StragglerWatch
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.rendezvous.session import RendezvousThread
from elasticjob_runtime.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

MOST_PUBLISHED = 32
"""Ranks in what the operator reads."""


class Stragglers:
    """Not thread-safe: use it on the agent's event loop only. Times are monotonic, s."""

    def __init__(
        self, settings: StragglerSettings, session: RendezvousThread, event_loop: EventLoop, recorder: Recorder
    ) -> None:
        self._settings = settings
        self._session = session
        self._event_loop = event_loop
        self._recorder = recorder
        self._meter = PaceMeter()
        self._watch = StragglerWatch(settings.factor)
        self._round = 0
        self._running = False

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._meter.due if self._running else None

    def starting(self, now: float) -> None:
        """Worker processes start, or continue in another round."""
        self._meter, self._watch = PaceMeter(now), StragglerWatch(self._settings.factor)

    def stopped(self) -> None:
        self._running = False

    def tick(self, error_files: Mapping[int, str], plan: Plan | None, now: float, *, leads: bool) -> None:
        """The local worker processes run. `leads`: this is rank 0's agent."""
        if plan is None or plan.rank is None or plan.value.world_size < 2 or not self._settings.factor:
            self._running = False
            return
        self._running, self._round = True, plan.round
        pace = self._meter.read(error_files, plan, now)
        if pace is not None:
            self._recorder.paced(self._meter.own_seconds)
            self._session.exchange(pace, self._received if leads else None)

    def _received(self, paces: Mapping[str, PaceValue]) -> None:
        """On the thread of the session."""
        self._event_loop.call_soon(lambda: self._judge(paces))

    def _judge(self, paces: Mapping[str, PaceValue]) -> None:
        found = self._watch.add({member: pace for member, pace in paces.items() if pace.round == self._round})
        if found is None:
            return
        for straggler in found:
            logger.warning("straggler: rank %d on %s: %s", straggler.rank, straggler.member, straggler.text)
        if not found:
            logger.info("stragglers: none any more")
        self._recorder.named_stragglers(found)
        self._session.publish(StragglersValue(round=self._round, stragglers=found[:MOST_PUBLISHED]))
