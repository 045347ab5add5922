"""The keys of one run as the operator sees them: values kept up to date from snapshots and events. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from elasticjob_runtime.contract import FailureValue, Keys, OutcomeValue, PlanValue, ProgressValue, SpecValue, Value
from elasticjob_runtime.etcd import Get, KeyRange, KeyValue, WatchUpdate

from elasticjob_operator.world import Reach, RendezvousView

log = logging.getLogger(__name__)

V = TypeVar("V", bound=Value)

KEPT_FAILURES = 64
"""Of the newest epochs: the first of them is what counts."""


class RunKeys:
    """What is known of a run. Not thread-safe."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._values: dict[str, str] = {}

    @property
    def ranges(self) -> list[KeyRange]:
        """What to watch: not the members and ranks, of which there are as many as workers."""
        keys = self._keys
        return [
            KeyRange(keys.spec),
            KeyRange(keys.plan),
            KeyRange(keys.progress),
            KeyRange(keys.outcome),
            KeyRange.prefix(keys.failures),
        ]

    @property
    def reads(self) -> list[Get]:
        *single, failures = self.ranges
        return [*(Get(each) for each in single), Get(failures, limit=KEPT_FAILURES, descending=True)]

    def replace(self, kvs: Iterable[KeyValue]) -> None:
        self._values = {kv.key: kv.value for kv in kvs}

    def update(self, update: WatchUpdate) -> None:
        if update.snapshot is not None:
            self.replace(update.snapshot)
        for event in update.events:
            if event.value is None:
                self._values.pop(event.key, None)
            else:
                self._values[event.key] = event.value
        self._forget_old_failures()

    def set(self, key: str, value: str) -> None:
        """What we have just written ourselves."""
        self._values[key] = value

    def view(self, reach: Reach, error: str = "") -> RendezvousView:
        keys = self._keys
        return RendezvousView(
            reach=reach,
            error=error,
            spec=self._parsed(keys.spec, SpecValue),
            plan=self._parsed(keys.plan, PlanValue),
            progress=self._parsed(keys.progress, ProgressValue),
            outcome=self._parsed(keys.outcome, OutcomeValue),
            failure=self._first_failure(),
        )

    def _first_failure(self) -> FailureValue | None:
        failures = [self._parsed(key, FailureValue) for key in self._failure_keys()]
        known = [failure for failure in failures if failure is not None]
        newest = max((failure.epoch for failure in known), default=0)
        return min((each for each in known if each.epoch == newest), key=lambda each: each.time, default=None)

    def _failure_keys(self) -> list[str]:
        return sorted(key for key in self._values if key.startswith(self._keys.failures))

    def _forget_old_failures(self) -> None:
        for key in self._failure_keys()[:-KEPT_FAILURES]:
            del self._values[key]

    def _parsed(self, key: str, kind: type[V]) -> V | None:
        text = self._values.get(key)
        if text is None:
            return None
        try:
            return kind.from_json(text)
        except ValueError as error:
            log.warning("%s is not understood and is taken as missing: %s", key, error)
            return None
