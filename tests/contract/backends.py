"""The implementations of interface.Store, behind one small interface for the contract suite."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from elasticjob_runtime.etcd import EtcdClient, Event, KeyRange, KeyValue, Store, StoreError, WatchFailure, WatchUpdate

from hack.embedded_etcd.memory import MemoryStore
from hack.embedded_etcd.memory_state import Revoke
from hack.embedded_etcd.server import EmbeddedServer
from tests.contract.etcd_servers import EtcdServer, require_etcd

NAMES = ("memory", "embedded", "etcd-3.4", "etcd-3.6")


OpenClient = Callable[..., EtcdClient]
"""The fixture `open_client`."""


class Backend(Protocol):
    """A running store that many tests share; each uses its own key prefix."""

    @property
    def store(self) -> Store: ...

    def compact(self, revision: int) -> None: ...

    def revoke(self, lease: int) -> None:
        """Ends a lease without the knowledge of who holds it."""


class MemoryBackend:
    def __init__(self) -> None:
        self.store = MemoryStore()

    def compact(self, revision: int) -> None:
        self.store.compact(revision)

    def revoke(self, lease: int) -> None:
        self.store.apply(Revoke(lease))


class EmbeddedBackend:
    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self.store = EtcdClient(server.endpoint)

    def compact(self, revision: int) -> None:
        self._server.store.compact(revision)

    def revoke(self, lease: int) -> None:
        self._server.store.apply(Revoke(lease))


class EtcdBackend:
    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self.store = EtcdClient(server.url)

    def compact(self, revision: int) -> None:
        self._server.compact(revision)

    def revoke(self, lease: int) -> None:
        self._server.call("/v3/lease/revoke", {"ID": str(lease)})


@contextlib.contextmanager
def start_backend(name: str, directory: Path) -> Iterator[Backend]:
    if name == "memory":
        memory = MemoryBackend()
        yield memory
        memory.store.close()
        return
    if name == "embedded":
        with EmbeddedServer() as embedded:
            client = EmbeddedBackend(embedded)
            yield client
            client.store.close()
        return
    server = EtcdServer(require_etcd(name.removeprefix("etcd-")), directory).start()
    backend = EtcdBackend(server)
    try:
        yield backend
    finally:
        backend.store.close()
        server.stop()


def by_range(events: Iterable[Event], ranges: Sequence[KeyRange]) -> list[list[Event]]:
    """The changes of each range, in the order in which they arrive. Changes of different ranges have no order."""
    found = list(events)
    return [[event for event in found if event.key in span] for span in ranges]


def present(store: Store, key: str) -> KeyValue:
    found = store.get(key)
    assert found is not None, key
    return found


class Collector:
    """A watch callback that keeps every item, for any thread to read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[WatchUpdate | WatchFailure] = []

    def __call__(self, item: WatchUpdate | WatchFailure) -> None:
        with self._lock:
            self._items.append(item)

    @property
    def items(self) -> list[WatchUpdate | WatchFailure]:
        with self._lock:
            return list(self._items)

    @property
    def updates(self) -> list[WatchUpdate]:
        return [item for item in self.items if isinstance(item, WatchUpdate)]

    @property
    def events(self) -> list[Event]:
        return [event for update in self.updates for event in update.events]

    @property
    def changes(self) -> list[tuple[str, str | None]]:
        return [(event.key, event.value) for event in self.events]

    @property
    def revisions(self) -> list[int]:
        return [event.mod_revision for event in self.events]

    @property
    def snapshots(self) -> list[tuple[KeyValue, ...]]:
        return [update.snapshot for update in self.updates if update.snapshot is not None]

    @property
    def failures(self) -> list[StoreError]:
        return [item.error for item in self.items if isinstance(item, WatchFailure)]


def watched(store: Store, *ranges: KeyRange, start: int = 2) -> Collector:
    """What a watch from this revision on delivers, until the store is closed."""
    seen = Collector()
    store.watch(ranges, start, seen)
    return seen
