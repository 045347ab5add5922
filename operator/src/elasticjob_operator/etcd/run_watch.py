"""One run as the operator sees it: its view, kept up to date by the hub of its etcd, and what to write. No I/O of its
own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys, SpecValue
from elasticjob_runtime.etcd import Delete, Denied, Event, KeyRange, KeyValue, NotEtcd, Operation, Put, StoreError

from elasticjob_operator.etcd.recovery_metrics import RecoveryMetrics
from elasticjob_operator.etcd.responses import for_log
from elasticjob_operator.etcd.run_keys import RunKeys
from elasticjob_operator.planning import Target
from elasticjob_operator.state import Connectivity, RendezvousView

log = logging.getLogger(__name__)

READ_SECONDS = 0.05
"""Between two readings of what a watch tells of one run, s: a script that writes all the time costs twenty readings a
second."""


class RunWatch:
    """`changed` is called whenever `view` differs, or a write that failed should be tried again."""

    def __init__(self, target: Target, changed: Callable[[], None]) -> None:
        self.target = target
        self.keys = Keys(DEFAULT_PREFIX, target.run_id)
        self.view = RendezvousView()
        self.ready_store_pod = target.ready_store_pod
        """The last pod of the job's own etcd that was ready."""
        self.failed_writes = 0
        """Since one went well."""
        self._changed = changed
        self._meter = RecoveryMetrics()
        self._run_keys = RunKeys(self.keys)
        self._early: dict[str, Event] | None = None
        """Changes that came while the state is being read; None: it is not."""
        self._owes = False
        """A write failed: whoever asked for it must look again."""
        self._looked_at = float("-inf")
        self._looks: asyncio.TimerHandle | None = None

    @property
    def reads(self) -> Sequence[Operation]:
        return self._run_keys.reads

    def begin_reading(self) -> None:
        self._early = {}

    def on_state(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """Everything there is of the run, as of `revision`."""
        early, self._early = self._early or {}, None
        self._run_keys.replace(kvs, revision)
        for event in early.values():
            self._run_keys.take(event)
        owes, self._owes = self._owes, False
        self._set_view(self._run_keys.view(Connectivity.REACHABLE), even_if_same=owes)

    def on_events(self, events: Iterable[Event]) -> None:
        if self._early is not None:
            for event in events:
                self._run_keys.keep(self._early, event)
            return
        news = [self._run_keys.take(event) for event in events]
        if any(news) and self.view.connectivity is Connectivity.REACHABLE:
            self._look_soon()

    def _look_soon(self) -> None:
        """The first news after a quiet moment is read at once; of what comes within `READ_SECONDS` only the last of
        each key is."""
        if self._looks is not None:
            return
        loop = asyncio.get_running_loop()
        due = self._looked_at + READ_SECONDS
        if due <= loop.time():
            self._look()
        else:
            self._looks = loop.call_at(due, self._look)

    def _look(self) -> None:
        self._looks = None
        self._looked_at = asyncio.get_running_loop().time()
        if self.view.connectivity is Connectivity.REACHABLE and self._early is None:
            self._set_view(self._run_keys.view(Connectivity.REACHABLE))

    def close(self) -> None:
        """Nothing is called after this."""
        if self._looks is not None:
            self._looks.cancel()

    def on_trouble(self, error: StoreError) -> None:
        """The etcd as a whole, or a read or write of this run."""
        self._early = None
        connectivity = Connectivity.DENIED if isinstance(error, Denied | NotEtcd) else Connectivity.UNREACHABLE
        if self.view.connectivity is not connectivity:
            log.warning("rendezvous %s at %s: %s", self.target.run_id, self.target.endpoint, for_log(error))
        self._set_view(self._run_keys.view(connectivity, str(error)))

    def on_failed_write(self) -> None:
        self._owes = True
        self.failed_writes += 1

    def publish(self, spec: SpecValue) -> tuple[Operation, Callable[[int], None]]:
        """The write, and what to call with its revision."""
        text = spec.to_json()

        def written(revision: int) -> None:
            self._run_keys.wrote(self.keys.spec, text, revision)
            self._set_view(self._run_keys.view(Connectivity.REACHABLE))

        return Put(self.keys.spec, text), written

    def evict(self, member: str) -> tuple[Operation, Callable[[int], None]]:
        return Delete(KeyRange(self.keys.member(member))), lambda _: None

    def clear(self) -> tuple[Operation, Callable[[int], None]]:
        """Deletes all keys of the run."""

        def written(revision: int) -> None:
            self._run_keys.replace((), revision)
            self._set_view(self._run_keys.view(Connectivity.REACHABLE))

        return Delete(KeyRange.prefix(self.keys.root)), written

    def _set_view(self, view: RendezvousView, *, even_if_same: bool = False) -> None:
        if view != self.view or even_if_same:
            before, self.view = self.view, view
            self._changed()
            self._meter_quietly(before, view)

    def _meter_quietly(self, before: RendezvousView, after: RendezvousView) -> None:
        """No figure is worth a job."""
        try:
            self._meter.see(before, after, time.time())
        except Exception:
            log.exception("not measured: a change of rendezvous %s", self.target.run_id)
