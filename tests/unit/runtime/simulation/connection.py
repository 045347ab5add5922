"""One agent's connection to the store: calls that take time, fail or lose their response, and leases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from elasticjob_runtime.etcd.interface import (
    Compare,
    KeyRange,
    LeaseLost,
    Operation,
    Put,
    Store,
    StoreError,
    TxnResult,
    Unavailable,
    WatchCallback,
)

from hack.embedded_etcd.memory_state import Grant, KeepAlive, Revoke, StateOperation, Txn
from tests.unit.runtime.simulation.clock import Killed
from tests.unit.runtime.simulation.server import Server, Watch

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent

CALL_TIMEOUT = 1.0
"""s for which a call waits for a store that is unreachable."""


def _writes(operation: StateOperation) -> bool:
    if isinstance(operation, Txn):
        return any(isinstance(one, Put) for one in (*operation.success, *operation.failure))
    return isinstance(operation, Grant)


class Lease:
    """interface.LeaseKeepAlive: renewed every third of its TTL while its owner is able to."""

    def __init__(self, server: Server, owner: Agent, number: int, ttl: float, on_lost: Callable[[str], None]) -> None:
        self.id = number
        self.expires_at = owner.now + ttl
        self._server = server
        self._owner = owner
        self._ttl = ttl
        self._on_lost = on_lost
        self._stopped = False
        server.clock.later(ttl / 3, self._renew)

    def stop(self) -> None:
        self._stopped = True

    def revoke(self) -> None:
        self._stopped = True
        if self._server.up and not self._owner.cut_off:
            with contextlib.suppress(LeaseLost):
                self._server.apply(Revoke(self.id))

    def _renew(self) -> None:
        if self._stopped or self._owner.dead:
            return
        pause = self._ttl / 3
        if self._owner.frozen or self._owner.cut_off or not self._server.up:
            pause = self._ttl / 20
        else:
            try:
                self._server.apply(KeepAlive(self.id))
                self.expires_at = self._owner.now + self._ttl
            except LeaseLost as error:
                self._stopped = True
                self._on_lost(str(error))
                return
        self._server.clock.later(pause, self._renew)


class Connection(Store):
    """One agent's. Every call takes time, in which all others continue."""

    def __init__(self, server: Server, owner: Agent, on_txn: Callable[[Sequence[Operation]], None]) -> None:
        self._server = server
        self._owner = owner
        self._on_txn = on_txn

    def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        timeout: float | None = None,
    ) -> TxnResult:
        result = self._call(Txn(compare, success, failure), CALL_TIMEOUT if timeout is None else timeout)
        if result.succeeded:
            self._on_txn(success)
            self._check_alive()
        return result

    def lease(self, ttl: float, on_lost: Callable[[str], None]) -> Lease:
        number = self._server.clock.random.getrandbits(40) + 1
        self._call(Grant(number, ttl), CALL_TIMEOUT)
        return Lease(self._server, self._owner, number, ttl, on_lost)

    def watch(self, ranges: Sequence[KeyRange], start_revision: int, callback: WatchCallback) -> Watch:
        watch = Watch(self._server, self._owner, ranges, start_revision, callback)
        self._server.watches.append(watch)
        watch.wake()
        return watch

    def close(self) -> None:
        """Nothing to close."""

    def _call(self, operation: StateOperation, timeout: float) -> TxnResult:
        clock = self._server.clock
        self._travel()
        end = clock.now + timeout
        while self._owner.cut_off or not self._server.up:
            if clock.now >= end:
                raise Unavailable("no endpoint answered")
            before = clock.now
            clock.let_pass(0.1)
            if clock.now == before:
                raise Unavailable("no endpoint answered")
            self._check_alive()
        try:
            if self._server.full and _writes(operation):
                raise StoreError("etcdserver: mvcc: database space exceeded")
            result: TxnResult | StoreError = self._server.apply(operation)
        except StoreError as error:
            result = error
        self._travel()
        if self._owner.cut_off or (self._owner.lossy and clock.random.random() < 0.5):
            raise Unavailable("the response was lost")
        if isinstance(result, StoreError):
            raise result
        return result

    def _travel(self) -> None:
        self._server.clock.let_pass(self._server.clock.latency())
        self._check_alive()

    def _check_alive(self) -> None:
        while self._owner.frozen and not self._owner.dead:
            before = self._server.clock.now
            self._server.clock.let_pass(0.05)
            if self._server.clock.now == before:
                break
        if self._owner.dead:
            raise Killed
