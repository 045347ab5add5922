"""The keys of one run as the operator sees them: values kept up to date from snapshots and events. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from elasticjob_runtime.contract import FailureValue, Keys, OutcomeValue, PlanValue, ProgressValue, SpecValue, Value
from elasticjob_runtime.etcd import Event, Get, KeyRange, KeyValue

from elasticjob_operator.world import Reach, RendezvousView

log = logging.getLogger(__name__)

V = TypeVar("V", bound=Value)

KEPT_FAILURES = 64
"""Of the newest epochs: the first of them is what counts."""


class RunKeys:
    """What is known of a run: a state read at one revision, and the changes after it."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._single = frozenset({keys.spec, keys.plan, keys.progress, keys.outcome})
        self._values: dict[str, str] = {}
        self._revision = 0
        """Of the state; changes up to it are in it."""
        self._written: dict[str, int] = {}
        """Keys that we have written since, and at which revision."""

    @property
    def reads(self) -> list[Get]:
        """Not the members and ranks, of which there are as many as workers."""
        return [*(Get(KeyRange(key)) for key in sorted(self._single)), Get(self._failures, limit=KEPT_FAILURES, descending=True)]

    @property
    def _failures(self) -> KeyRange:
        return KeyRange.prefix(self._keys.failures)

    def replace(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """Everything there is, as of `revision`."""
        self._values = {kv.key: kv.value for kv in kvs}
        self._revision = revision
        self._written.clear()

    def take(self, event: Event) -> bool:
        """Whether that is news of a key of interest."""
        if not (event.key in self._single or event.key.startswith(self._keys.failures)):
            return False
        if event.mod_revision <= max(self._revision, self._written.get(event.key, 0)):
            return False
        if event.value is None:
            self._values.pop(event.key, None)
        else:
            self._values[event.key] = event.value
        self._forget_old_failures()
        return True

    def wrote(self, key: str, value: str, revision: int) -> None:
        """What we have just written ourselves."""
        self._values[key] = value
        self._written[key] = revision

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
