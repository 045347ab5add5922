"""One run as the operator sees it: its view, kept up to date by the hub of its etcd, and what to write. No I/O of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys, SpecValue
from elasticjob_runtime.etcd import Delete, Denied, Event, KeyRange, KeyValue, NotEtcd, Operation, Put, StoreError

from elasticjob_operator.planning import Target
from elasticjob_operator.rendezvous.keys import RunKeys
from elasticjob_operator.rendezvous.meter import Meter
from elasticjob_operator.world import Reach, RendezvousView

log = logging.getLogger(__name__)


class Session:
    """`changed` is called whenever `view` differs, or a write that failed should be tried again."""

    def __init__(self, target: Target, changed: Callable[[], None]) -> None:
        self.target = target
        self.keys = Keys(DEFAULT_PREFIX, target.run_id)
        self.view = RendezvousView()
        self.awake = target.awake
        """The last pod of the job's own etcd that was ready."""
        self.failed_writes = 0
        """Since one went well."""
        self._changed = changed
        self._meter = Meter()
        self._run_keys = RunKeys(self.keys)
        self._early: list[Event] | None = None
        """Changes that came while the state is being read; None: it is not."""
        self._owes = False
        """A write failed: whoever asked for it must look again."""

    @property
    def reads(self) -> Sequence[Operation]:
        return self._run_keys.reads

    def begin_reading(self) -> None:
        self._early = []

    def on_state(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """Everything there is of the run, as of `revision`."""
        early, self._early = self._early or [], None
        self._run_keys.replace(kvs, revision)
        for event in early:
            self._run_keys.take(event)
        owes, self._owes = self._owes, False
        self._set_view(self._run_keys.view(Reach.REACHABLE), even_if_same=owes)

    def on_events(self, events: Iterable[Event]) -> None:
        if self._early is not None:
            self._early += events
            return
        news = [self._run_keys.take(event) for event in events]
        if any(news) and self.view.reach is Reach.REACHABLE:
            self._set_view(self._run_keys.view(Reach.REACHABLE))

    def on_trouble(self, error: StoreError) -> None:
        """The etcd as a whole, or a read or write of this run."""
        self._early = None
        reach = Reach.DENIED if isinstance(error, Denied | NotEtcd) else Reach.UNREACHABLE
        if self.view.reach is not reach:
            log.warning("rendezvous %s at %s: %s", self.target.run_id, self.target.endpoint, error)
        self._set_view(self._run_keys.view(reach, str(error)))

    def on_failed_write(self) -> None:
        self._owes = True
        self.failed_writes += 1

    def publish(self, spec: SpecValue) -> tuple[Operation, Callable[[int], None]]:
        """The write, and what to call with its revision."""
        text = spec.to_json()

        def written(revision: int) -> None:
            self._run_keys.wrote(self.keys.spec, text, revision)
            self._set_view(self._run_keys.view(Reach.REACHABLE))

        return Put(self.keys.spec, text), written

    def evict(self, member: str) -> tuple[Operation, Callable[[int], None]]:
        return Delete(KeyRange(self.keys.member(member))), lambda _: None

    def clear(self) -> tuple[Operation, Callable[[int], None]]:
        """Deletes all keys of the run."""

        def written(revision: int) -> None:
            self._run_keys.replace((), revision)
            self._set_view(self._run_keys.view(Reach.REACHABLE))

        return Delete(KeyRange.prefix(self.keys.root)), written

    def _set_view(self, view: RendezvousView, *, even_if_same: bool = False) -> None:
        if view != self.view or even_if_same:
            self._meter.see(self.view, view, time.time())
            self.view = view
            self._changed()
