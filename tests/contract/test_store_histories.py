"""Random histories: every store gives the same answers as the state machine, and its watches deliver the same
changes."""

from __future__ import annotations

import dataclasses
import random

import pytest
from elasticjob_runtime.etcd import (
    Compare,
    Delete,
    Event,
    Get,
    KeyRange,
    KeyValue,
    Operation,
    Put,
    StoreError,
    TxnResult,
)

from hack.embedded_etcd.memory_state import Grant, Revoke, State, Txn
from hack.support import eventually
from tests.contract.backends import Backend, Collector, by_range

NAMES = ("a", "a/1", "a/2", "b", "b/1", "c", "ä")


class Twins:
    """Runs every operation on both the store and a fresh state machine, and compares the answers."""

    def __init__(self, backend: Backend, prefix: str, seed: int) -> None:
        self.backend = backend
        self.prefix = prefix
        self.rng = random.Random(seed)
        self.state = State()
        self.offset = backend.store.put("/elsewhere", "") - 1
        """What to add to a revision of the state machine to get that of the store."""
        self.leases: dict[int, int] = {}
        """Lease IDs of the store to those of the state machine."""
        self.granted = 0

    def shifted(self, revision: int) -> int:
        return revision + self.offset if revision else 0

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.05:
            self.granted += 1
            kept = self.backend.store.lease(3600, lambda _: None)
            kept.stop()
            self.state.apply(Grant(self.granted, 3600), now=0)
            self.leases[kept.id] = self.granted
        elif kind < 0.08 and self.leases:
            lease = self.rng.choice(list(self.leases))
            self.backend.revoke(lease)
            self.state.apply(Revoke(self.leases.pop(lease)), now=0)
        else:
            self.transact()

    def transact(self) -> None:
        compare = [self.guard() for _ in range(self.rng.choice((0, 0, 1, 2)))]
        success = [self.operation() for _ in range(self.rng.randint(0, 4))]
        failure = [self.operation() for _ in range(self.rng.randint(0, 2))]
        theirs = [self.guard_of_store(c) for c in compare]
        expected: TxnResult | None = None
        try:
            expected = self.state.apply(
                Txn(compare, [self.mine(o) for o in success], [self.mine(o) for o in failure]), now=0
            )
        except StoreError:
            with pytest.raises(StoreError):
                self.backend.store.txn(theirs, success, failure)
        else:
            result = self.backend.store.txn(theirs, success, failure)
            assert (result.succeeded, result.revision) == (expected.succeeded, self.shifted(expected.revision))
            assert result.reads == tuple(tuple(self.as_stored(kv) for kv in read) for read in expected.reads)

    def key(self) -> str:
        return self.prefix + self.rng.choice(NAMES)

    def span(self) -> KeyRange:
        low, high = sorted((self.key(), self.key()))
        return self.rng.choice((KeyRange(low), KeyRange(low, high + "x"), KeyRange.prefix(self.prefix + "a/")))

    def guard(self) -> Compare:
        """A random guard, which holds with probability 2/3."""
        key = self.key()
        found = self.state.read(Get(KeyRange(key)))
        created, modified = (found[0].create_revision, found[0].mod_revision) if found else (0, 0)
        wrong = self.rng.choice((0, 0, 1))
        return self.rng.choice(
            (Compare(key, create_revision=created + wrong), Compare(key, mod_revision=modified + wrong))
        )

    def guard_of_store(self, compare: Compare) -> Compare:
        created, modified = compare.create_revision, compare.mod_revision
        return Compare(
            compare.key,
            create_revision=created if created is None else self.shifted(created),
            mod_revision=modified if modified is None else self.shifted(modified),
        )

    def operation(self) -> Operation:
        lease = self.rng.choice([0, 0, *self.leases])
        put = Put(self.key(), str(self.rng.random()), lease)
        get = Get(
            self.span(),
            self.rng.choice((0, 2)),
            self.rng.random() < 0.3,
            self.rng.random() < 0.3,
            keys_only=self.rng.random() < 0.3,
        )
        return self.rng.choice((put, put, Delete(self.span()), get))

    def mine(self, operation: Operation) -> Operation:
        if isinstance(operation, Put):
            return dataclasses.replace(operation, lease=self.leases.get(operation.lease, 0))
        return operation

    def as_stored(self, kv: KeyValue) -> KeyValue:
        lease = next((theirs for theirs, mine in self.leases.items() if mine == kv.lease), 0)
        return dataclasses.replace(
            kv,
            create_revision=self.shifted(kv.create_revision),
            mod_revision=self.shifted(kv.mod_revision),
            lease=lease,
        )

    def as_reported(self, event: Event) -> Event:
        return dataclasses.replace(
            event, create_revision=self.shifted(event.create_revision), mod_revision=self.shifted(event.mod_revision)
        )


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_give_the_same_results_on_every_store(backend: Backend, prefix: str, seed: int) -> None:
    twins = Twins(backend, prefix, seed)
    ranges = [KeyRange.prefix(prefix + "a"), KeyRange(prefix + "b/1"), KeyRange(prefix + "ä")]
    early, late = Collector(), Collector()
    watches = [backend.store.watch(ranges, twins.shifted(2), early)]
    for _ in range(300):
        twins.step()
    watches.append(backend.store.watch(ranges, twins.shifted(2), late))
    expected = [twins.as_reported(event) for event in twins.state.changes_since(ranges, 2)]
    assert len(expected) > 50
    eventually(lambda: len(early.events) >= len(expected) and len(late.events) >= len(expected))
    for watch in watches:
        watch.cancel()
    for seen in (early.events, late.events):
        assert by_range(seen, ranges) == by_range(expected, ranges)
