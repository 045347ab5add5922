"""The keys of one run as the operator sees them: values kept up to date from snapshots and events. No I/O."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any, TypeVar

from elasticjob_runtime.contract import FailureValue, Keys, OutcomeValue, PlanValue, ProgressValue, SpecValue, Value
from elasticjob_runtime.etcd import Event, Get, KeyRange, KeyValue

from elasticjob_operator.etcd import values
from elasticjob_operator.state import Connectivity, RendezvousView

log = logging.getLogger(__name__)

V = TypeVar("V", bound=Value)

LONGEST_SENTENCE = 300
"""Of what is wrong with a value: it may quote the value."""
KEPT_FAILURES = 64
"""Of the newest rounds: the first of them is what counts."""


class RunKeys:
    """What is known of a run: a state read at one revision, and the changes after it."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._single: dict[str, type[Value]] = {
            keys.spec: SpecValue,
            keys.plan: PlanValue,
            keys.progress: ProgressValue,
            keys.outcome: OutcomeValue,
        }
        self._texts: dict[str, str] = {}
        """As they were told, and not read yet: of many that come at once only the last is read."""
        self._values: dict[str, Value] = {}
        self._unreadable: dict[str, str] = {}
        """What is wrong with a value, by key: a sentence."""
        self._revision = 0
        """Of the state; changes up to it are in it."""
        self._written: dict[str, int] = {}
        """Keys that we have written since, and at which revision."""

    @property
    def reads(self) -> list[Get]:
        """Not the members and ranks, of which there are as many as workers."""
        return [
            *(Get(KeyRange(key)) for key in sorted(self._single)),
            Get(self._failures, limit=KEPT_FAILURES, descending=True),
        ]

    @property
    def _failures(self) -> KeyRange:
        return KeyRange.prefix(self._keys.failures)

    def replace(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """Everything there is, as of `revision`."""
        self._texts.clear()
        self._values.clear()
        self._unreadable.clear()
        for kv in kvs:
            self._set(kv.key, kv.value)
        self._revision = revision
        self._written.clear()

    def take(self, event: Event) -> bool:
        """Whether that is news of a key of interest."""
        if self._kind(event.key) is None:
            return False
        if event.mod_revision <= max(self._revision, self._written.get(event.key, 0)):
            return False
        self._set(event.key, event.value)
        if event.key not in self._single:
            self._forget_old_failures()
        return True

    def wrote(self, key: str, value: str, revision: int) -> None:
        """What we have just written ourselves."""
        self._set(key, value)
        self._written[key] = revision

    def keep(self, early: dict[str, Event], event: Event) -> None:
        """Adds news that cannot be taken yet. Of each key the last, of failures the newest: never more than is kept in
        the end."""
        kind = self._kind(event.key)
        if kind is None:
            return
        value = None if event.value is None else event.value[: values.LONGEST[kind] + 1]
        early[event.key] = dataclasses.replace(event, value=value)
        if event.key not in self._single and len(early) > KEPT_FAILURES + len(self._single):
            del early[min(key for key in early if key not in self._single)]

    def _kind(self, key: str) -> type[Value] | None:
        return self._single.get(key) or (FailureValue if key.startswith(self._keys.failures) else None)

    def _set(self, key: str, text: str | None) -> None:
        for known in (self._texts, self._values, self._unreadable):
            known.pop(key, None)
        kind = self._kind(key)
        if text is None or kind is None:
            return
        # One that is too long is refused when it is read, and need not be kept until then.
        self._texts[key] = text[: values.LONGEST[kind] + 1]

    def view(self, connectivity: Connectivity, error: str = "") -> RendezvousView:
        keys = self._keys
        self._read_texts()
        return RendezvousView(
            connectivity=connectivity,
            error=error,
            unreadable=next(iter(sorted(self._unreadable.values())), ""),
            spec=self._known(keys.spec, SpecValue),
            plan=self._known(keys.plan, PlanValue),
            progress=self._known(keys.progress, ProgressValue),
            outcome=self._known(keys.outcome, OutcomeValue),
            failure=self._first_failure(),
        )

    def _first_failure(self) -> FailureValue | None:
        known = [each for key in self._failure_keys() if (each := self._known(key, FailureValue)) is not None]
        newest = max((failure.round for failure in known), default=0)
        return min((each for each in known if each.round == newest), key=lambda each: each.time, default=None)

    def _failure_keys(self) -> list[str]:
        there: dict[str, Any] = self._values | self._texts | self._unreadable
        return sorted(key for key in there if key.startswith(self._keys.failures))

    def _forget_old_failures(self) -> None:
        for key in self._failure_keys()[:-KEPT_FAILURES]:
            self._set(key, None)

    def _known(self, key: str, kind: type[V]) -> V | None:
        value = self._values.get(key)
        return value if isinstance(value, kind) else None

    def _read_texts(self) -> None:
        for key, text in self._texts.items():
            kind = self._kind(key)
            assert kind is not None
            try:
                self._values[key] = values.read(kind, text)
            except ValueError as error:
                log.warning("%s is not understood and is taken as missing: %.300s", key, error)
                self._unreadable[key] = f"{key[len(self._keys.root) :]}: {error}"[:LONGEST_SENTENCE]
        self._texts.clear()
