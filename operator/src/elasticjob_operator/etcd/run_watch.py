"""One run as the operator sees it, kept up to date by the shared watch of its etcd, and the writes to it. No I/O."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys, LocationsValue, SpecValue, Value
from elasticjob_runtime.etcd import Delete, Denied, Event, KeyRange, KeyValue, NotEtcd, Operation, Put, StoreError

from elasticjob_operator.credentials import CredentialsUnusable
from elasticjob_operator.etcd.recovery_metrics import RecoveryMetrics
from elasticjob_operator.etcd.responses import Untrusted, for_log
from elasticjob_operator.etcd.run_keys import RunKeys
from elasticjob_operator.planning import Target
from elasticjob_operator.policies.progress import only_progress_reported
from elasticjob_operator.state import Connectivity, RendezvousView

log = logging.getLogger(__name__)

REFRESH_SECONDS = 0.05
"""Minimum time between two refreshes of a run's view, s: a script that writes continuously costs twenty a second."""


class RunWatch:
    """`changed` is called whenever `view` differs, or a failed write should be retried; where nothing but progress was
    reported, `progressed` is called instead."""

    def __init__(self, target: Target, changed: Callable[[], None], progressed: Callable[[], None]) -> None:
        self.target = target
        self.keys = Keys(DEFAULT_PREFIX, target.run_id)
        self.view = RendezvousView()
        self.ready_store_pod = target.ready_store_pod
        """UID of the last ready pod of the job's own etcd."""
        self.failed_writes = 0
        """Since the last successful one."""
        self._changed = changed
        self._progressed = progressed
        self._metrics = RecoveryMetrics()
        self._run_keys = RunKeys(self.keys)
        self._buffered: dict[str, Event] | None = None
        """Changes that arrive while the snapshot is being read; None: it is not."""
        self._write_failed = False
        """The reconciler must retry once etcd responds."""
        self._refreshed_at = float("-inf")
        self._refresh_timer: asyncio.TimerHandle | None = None

    @property
    def reads(self) -> Sequence[Operation]:
        return self._run_keys.reads

    def begin_reading(self) -> None:
        self._buffered = {}

    def on_state(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """A snapshot of the run as of `revision`."""
        buffered, self._buffered = self._buffered or {}, None
        self._run_keys.replace(kvs, revision)
        for event in buffered.values():
            self._run_keys.apply(event)
        write_failed, self._write_failed = self._write_failed, False
        self._set_view(self._run_keys.view(Connectivity.REACHABLE), even_if_same=write_failed)

    def on_events(self, events: Iterable[Event]) -> None:
        if self._buffered is not None:
            for event in events:
                self._run_keys.buffer(self._buffered, event)
            return
        applied = [self._run_keys.apply(event) for event in events]
        if any(applied) and self.view.connectivity is Connectivity.REACHABLE:
            self._refresh_soon()

    def _refresh_soon(self) -> None:
        """Parses the first change after a quiet moment at once; of those within `REFRESH_SECONDS`, only the last of a
        key."""
        if self._refresh_timer is not None:
            return
        loop = asyncio.get_running_loop()
        due = self._refreshed_at + REFRESH_SECONDS
        if due <= loop.time():
            self._refresh()
        else:
            self._refresh_timer = loop.call_at(due, self._refresh)

    def _refresh(self) -> None:
        self._refresh_timer = None
        self._refreshed_at = asyncio.get_running_loop().time()
        if self.view.connectivity is Connectivity.REACHABLE and self._buffered is None:
            self._set_view(self._run_keys.view(Connectivity.REACHABLE))

    def close(self) -> None:
        """No callbacks after this."""
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()

    def on_trouble(self, error: StoreError) -> None:
        """An error of the etcd as a whole, or of a read or write of this run."""
        self._buffered = None
        connectivity = _connectivity(error)
        if self.view.connectivity is not connectivity:
            log.warning("rendezvous %s at %s: %s", self.target.run_id, self.target.endpoint, for_log(error))
        self._set_view(self._run_keys.view(connectivity, str(error)))

    def on_failed_write(self) -> None:
        self._write_failed = True
        self.failed_writes += 1

    def publish(self, spec: SpecValue) -> tuple[Operation, Callable[[int], None]]:
        """The write, and the callback for its revision."""
        return self._put(self.keys.spec, spec)

    def locate(self, locations: LocationsValue) -> tuple[Operation, Callable[[int], None]]:
        return self._put(self.keys.locations, locations)

    def _put(self, key: str, value: Value) -> tuple[Operation, Callable[[int], None]]:
        text = value.to_json()

        def written(revision: int) -> None:
            self._run_keys.on_write(key, text, revision)
            self._set_view(self._run_keys.view(Connectivity.REACHABLE))

        return Put(key, text), written

    def evict(self, member: str) -> tuple[Operation, Callable[[int], None]]:
        return Delete(KeyRange(self.keys.member(member))), lambda _: None

    def clear(self) -> tuple[Operation, Callable[[int], None]]:
        """Deletes all keys of the run."""

        def written(revision: int) -> None:
            self._run_keys.replace((), revision)
            self._set_view(self._run_keys.view(Connectivity.REACHABLE))

        return Delete(KeyRange.prefix(self.keys.root)), written

    def _set_view(self, view: RendezvousView, *, even_if_same: bool = False) -> None:
        if view == self.view and not even_if_same:
            return
        before, self.view = self.view, dataclasses.replace(view, progress_seen_at=_progress_seen_at(self.view, view))
        if even_if_same or not only_progress_reported(before, view):
            self._changed()
        else:
            self._progressed()
        self._record_metrics(before, view)

    def _record_metrics(self, before: RendezvousView, after: RendezvousView) -> None:
        """A fault in the metrics must not affect the job."""
        try:
            self._metrics.update(before, after, time.time())
        except Exception:
            log.exception("Cannot record metrics of rendezvous %s", self.target.run_id)


def _progress_seen_at(before: RendezvousView, after: RendezvousView) -> datetime.datetime | None:
    if before.progress is not None and after.progress is not None and before.progress.step == after.progress.step:
        return before.progress_seen_at
    return datetime.datetime.now(datetime.timezone.utc) if after.progress is not None else None


def _connectivity(error: StoreError) -> Connectivity:
    match error:
        case CredentialsUnusable():
            return Connectivity.NO_CREDENTIALS
        case Untrusted():
            return Connectivity.UNTRUSTED
        case Denied() | NotEtcd():
            return Connectivity.DENIED
        case _:
            return Connectivity.UNREACHABLE
