"""The keys of one run, kept up to date from snapshots and events. No I/O."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any, TypeVar

from elasticjob_api.spec import MAX_WORKERS
from elasticjob_runtime.contract import (
    NO_REPLICA,
    FailureValue,
    HangValue,
    Keys,
    LocationsValue,
    OutcomeValue,
    PlanValue,
    ProgressValue,
    ReplicaValue,
    SpecValue,
    StragglersValue,
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
MAX_VALUES = 64
"""Values of a folder to keep, those of the last keys: only the first failure of the newest round is used, and the hangs
of members that can name a rank."""


class RunKeys:
    """A snapshot of a run read at one revision, and the changes after it."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._single: dict[str, type[Value]] = {
            keys.spec: SpecValue,
            keys.plan: PlanValue,
            keys.progress: ProgressValue,
            keys.transition: TransitionValue,
            keys.stragglers: StragglersValue,
            keys.unready: UnreadyValue,
            keys.locations: LocationsValue,
            keys.outcome: OutcomeValue,
        }
        self._folders: dict[str, type[Value]] = {
            keys.failures: FailureValue, keys.hangs: HangValue, keys.replicas: ReplicaValue
        }  # fmt: skip
        # One of whose replica nothing is known would be taken for a spare.
        self._limits = {keys.failures: MAX_VALUES, keys.hangs: MAX_VALUES, keys.replicas: MAX_WORKERS}
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
            *(Get(KeyRange.prefix(folder), limit=limit, descending=True) for folder, limit in self._limits.items()),
        ]

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
        if (folder := self._folder(event.key)) is not None:
            for key in self._keys_in(folder)[: -self._limits[folder]]:
                self._set(key, None)
        return True

    def on_write(self, key: str, value: str, revision: int) -> None:
        """Applies our own write."""
        self._set(key, value)
        self._written[key] = revision

    def buffer(self, buffered: dict[str, Event], event: Event) -> None:
        """Keeps an event that cannot be applied yet: the last one of each key, and the last keys of each folder."""
        kind = self._kind(event.key)
        if kind is None:
            return
        value = None if event.value is None else event.value[: values.MAX_LENGTH[kind] + 1]
        buffered[event.key] = dataclasses.replace(event, value=value)
        if (folder := self._folder(event.key)) is not None:
            found = [key for key in buffered if key.startswith(folder)]
            if len(found) > self._limits[folder]:
                del buffered[min(found)]

    def _kind(self, key: str) -> type[Value] | None:
        folder = self._folder(key)
        return self._single.get(key) if folder is None else self._folders[folder]

    def _folder(self, key: str) -> str | None:
        return next((folder for folder in self._folders if key.startswith(folder)), None)

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
            stragglers=self._value(keys.stragglers, StragglersValue),
            unready=self._value(keys.unready, UnreadyValue),
            locations=self._value(keys.locations, LocationsValue),
            outcome=self._value(keys.outcome, OutcomeValue),
            failure=self._first_failure(),
            hangs=tuple(self._values_in(keys.hangs, HangValue)),
            replicas=self._replicas(),
        )

    def _replicas(self) -> dict[str, ReplicaValue]:
        folder = self._keys.replicas
        known = ((key, self._value(key, ReplicaValue)) for key in self._keys_in(folder))
        return {
            key[len(folder) :]: replica for key, replica in known if replica is not None and replica.index != NO_REPLICA
        }

    def _first_failure(self) -> FailureValue | None:
        known = self._values_in(self._keys.failures, FailureValue)
        newest = max((failure.round for failure in known), default=0)
        return first_failure(failure for failure in known if failure.round == newest) if known else None

    def _keys_in(self, folder: str) -> list[str]:
        there: dict[str, Any] = self._values | self._unparsed | self._unreadable
        return sorted(key for key in there if key.startswith(folder))

    def _values_in(self, folder: str, kind: type[V]) -> list[V]:
        return [value for key in self._keys_in(folder) if (value := self._value(key, kind)) is not None]

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
