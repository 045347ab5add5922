"""The keys of one run, kept up to date from snapshots and events. No I/O."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any, TypeVar

from elasticjob_runtime.contract import (
    FailureValue,
    Keys,
    LocationsValue,
    OutcomeValue,
    PlanValue,
    ProgressValue,
    SpecValue,
    TransitionValue,
    UnreadyValue,
    Value,
    first_failure,
)
from elasticjob_runtime.etcd import Event, Get, KeyRange, KeyValue

from elasticjob_operator.etcd import values
from elasticjob_operator.state import Connectivity, RendezvousView

log = logging.getLogger(__name__)

V = TypeVar("V", bound=Value)

MAX_ERROR_LENGTH = 300
"""Characters of an error about a value, which may quote the value."""
MAX_FAILURES = 64
"""Number of failures to keep, of the newest rounds: only the first failure of the newest round is used."""


class RunKeys:
    """A snapshot of a run read at one revision, and the changes after it."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._single: dict[str, type[Value]] = {
            keys.spec: SpecValue,
            keys.plan: PlanValue,
            keys.progress: ProgressValue,
            keys.transition: TransitionValue,
            keys.unready: UnreadyValue,
            keys.locations: LocationsValue,
            keys.outcome: OutcomeValue,
        }
        self._unparsed: dict[str, str] = {}
        """Values not parsed yet: of several for one key, only the last is parsed."""
        self._values: dict[str, Value] = {}
        self._unreadable: dict[str, str] = {}
        """Why a value is invalid, by key."""
        self._revision = 0
        """Revision of the snapshot, which includes all changes up to it."""
        self._written: dict[str, int] = {}
        """Revisions of our own writes since then, by key."""

    @property
    def reads(self) -> list[Get]:
        """The keys to read. Members and ranks, of which there are as many as worker pods, are left out."""
        return [
            *(Get(KeyRange(key)) for key in sorted(self._single)),
            Get(self._failures, limit=MAX_FAILURES, descending=True),
        ]

    @property
    def _failures(self) -> KeyRange:
        return KeyRange.prefix(self._keys.failures)

    def replace(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """A snapshot as of `revision`."""
        self._unparsed.clear()
        self._values.clear()
        self._unreadable.clear()
        for kv in kvs:
            self._set(kv.key, kv.value)
        self._revision = revision
        self._written.clear()

    def apply(self, event: Event) -> bool:
        """Whether the event changes a key of interest."""
        if self._kind(event.key) is None:
            return False
        if event.mod_revision <= max(self._revision, self._written.get(event.key, 0)):
            return False
        self._set(event.key, event.value)
        if event.key not in self._single:
            self._forget_old_failures()
        return True

    def on_write(self, key: str, value: str, revision: int) -> None:
        """Applies our own write."""
        self._set(key, value)
        self._written[key] = revision

    def buffer(self, buffered: dict[str, Event], event: Event) -> None:
        """Keeps an event that cannot be applied yet: the last one of each key, and the newest failures."""
        kind = self._kind(event.key)
        if kind is None:
            return
        value = None if event.value is None else event.value[: values.MAX_LENGTH[kind] + 1]
        buffered[event.key] = dataclasses.replace(event, value=value)
        if event.key not in self._single and len(buffered) > MAX_FAILURES + len(self._single):
            del buffered[min(key for key in buffered if key not in self._single)]

    def _kind(self, key: str) -> type[Value] | None:
        return self._single.get(key) or (FailureValue if key.startswith(self._keys.failures) else None)

    def _set(self, key: str, text: str | None) -> None:
        for known in (self._unparsed, self._values, self._unreadable):
            known.pop(key, None)
        kind = self._kind(key)
        if text is None or kind is None:
            return
        # A value that is too long is rejected when it is parsed, so it need not be kept whole until then.
        self._unparsed[key] = text[: values.MAX_LENGTH[kind] + 1]

    def view(self, connectivity: Connectivity, error: str = "") -> RendezvousView:
        keys = self._keys
        self._parse()
        progress = self._value(keys.progress, ProgressValue)
        reported = progress is None or progress.optimizer_steps is None
        return RendezvousView(
            connectivity=connectivity,
            error=error,
            unreadable=next(iter(sorted(self._unreadable.values())), ""),
            spec=self._value(keys.spec, SpecValue),
            plan=self._value(keys.plan, PlanValue),
            progress=progress if reported else None,
            counted=None if reported else progress,
            transition=self._value(keys.transition, TransitionValue),
            unready=self._value(keys.unready, UnreadyValue),
            locations=self._value(keys.locations, LocationsValue),
            outcome=self._value(keys.outcome, OutcomeValue),
            failure=self._first_failure(),
        )

    def _first_failure(self) -> FailureValue | None:
        known = [each for key in self._failure_keys() if (each := self._value(key, FailureValue)) is not None]
        newest = max((failure.round for failure in known), default=0)
        return first_failure(each for each in known if each.round == newest) if known else None

    def _failure_keys(self) -> list[str]:
        there: dict[str, Any] = self._values | self._unparsed | self._unreadable
        return sorted(key for key in there if key.startswith(self._keys.failures))

    def _forget_old_failures(self) -> None:
        for key in self._failure_keys()[:-MAX_FAILURES]:
            self._set(key, None)

    def _value(self, key: str, kind: type[V]) -> V | None:
        value = self._values.get(key)
        return value if isinstance(value, kind) else None

    def _parse(self) -> None:
        for key, text in self._unparsed.items():
            kind = self._kind(key)
            assert kind is not None
            try:
                self._values[key] = values.parse(kind, text)
            except ValueError as error:
                log.warning("Ignoring the invalid value of %s: %.300s", key, error)
                self._unreadable[key] = f"{key[len(self._keys.root) :]}: {error}"[:MAX_ERROR_LENGTH]
        self._unparsed.clear()
