"""The evidence of all members, during a hang: each tells its own, and those that may have to act read the others'."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from elasticjob_runtime.contract import EvidenceValue
from elasticjob_runtime.membership.culprit import RankEvidence
from elasticjob_runtime.membership.shared_evidence import of_group, reads, to_value
from elasticjob_runtime.membership.view import Plan

Received = Callable[[Mapping[str, EvidenceValue]], None]
Exchange = Callable[[EvidenceValue, Received | None], None]
"""Tells the others, and calls back, on any thread, with what all have told, by member."""

ASK_SECONDS, WAIT_SECONDS = 1.0, 10.0
"""s between two looks, and that one waits for members that notice the hang a little later."""


class EvidenceExchange:
    """Of one look at one hang. Not thread-safe, but for what `exchange` calls. `now`: monotonic, s."""

    def __init__(
        self, exchange: Exchange, own: Mapping[int, RankEvidence], plan: Plan, size: int, since: float, now: float
    ) -> None:
        """`own`: by rank. `size`: ranks of the whole group, or of this member's replica. `since`: monotonic time of the
        last step."""
        self._exchange = exchange
        self.own = own
        self._plan = plan
        self._size = size
        self._replica = plan.replica.index if plan.replica is not None else None
        self._since = time.time() - (now - since)
        self._until = now + WAIT_SECONDS
        self._told: Mapping[str, EvidenceValue] = {}
        self.due = now
        """When to call `tick`."""

    def tick(self, now: float) -> dict[int, RankEvidence] | None:
        """The evidence, of all ranks if possible; None: not yet."""
        group = of_group(self._told.values(), round_number=self._plan.round, since=self._since, replica=self._replica)
        evidence = {**group, **self.own}
        if len(evidence) >= self._size or now >= self._until:
            return evidence
        if now < self.due:
            return None
        self.due = now + ASK_SECONDS
        wanted = reads(self.own, self._plan.value.size)
        value = to_value(self.own, round_number=self._plan.round, time=time.time(), replica=self._replica)
        self._exchange(value, self._receive if wanted else None)
        return None if wanted else evidence

    def _receive(self, told: Mapping[str, EvidenceValue]) -> None:
        self._told = told
