"""What the state machine adds to etcd's semantics (those are checked by the contract suite): time, history and
purity."""

from __future__ import annotations

import pytest
from elasticjob_runtime.etcd import Get, KeyRange, LeaseLost, Put, StoreError

from hack.embedded_etcd.memory import MemoryStore
from hack.embedded_etcd.memory_state import Compact, Compacted, Grant, KeepAlive, Revoke, State, Txn
from hack.support import eventually

ALL = (KeyRange("a", "zz"),)


def test_leases_expire_by_the_time_that_the_caller_gives() -> None:
    state = State()
    state.apply(Grant(7, ttl=10), now=100)
    state.apply(Txn(success=[Put("a", "", 7), Put("b", "", 7)]), now=105)
    state.apply(KeepAlive(7), now=109)
    assert state.next_expiry() == 119
    state.expire(118.9)
    assert len(state.read(Get(ALL[0]))) == 2
    result = state.apply(Txn(), now=119)
    assert result.revision == 3
    assert [(e.key, e.value, e.mod_revision) for e in state.changes_since(ALL, 3)] == [("a", None, 3), ("b", None, 3)]
    with pytest.raises(LeaseLost):
        state.apply(KeepAlive(7), now=119)
    assert state.next_expiry() is None


def test_leases_expire_in_the_order_of_their_expiry() -> None:
    state = State()
    for lease, ttl in ((1, 5), (2, 3), (3, 4)):
        state.apply(Grant(lease, ttl), now=0)
        state.apply(Txn(success=[Put(f"k{lease}", "", lease)]), now=0)
    state.expire(100)
    assert [event.key for event in state.changes_since(ALL, 5)] == ["k2", "k3", "k1"]
    assert state.revision == 7


def test_a_failed_operation_changes_nothing() -> None:
    state = State()
    state.apply(Grant(7, 10), now=0)
    for operation in (
        Grant(7, 5),
        Revoke(8),
        KeepAlive(8),
        Txn(success=[Put("a", ""), Put("b", "", lease=8)]),
        Txn(success=[Put("a", ""), Put("a", "")]),
        Compact(99),
    ):
        with pytest.raises(StoreError):
            state.apply(operation, now=1)
    assert (state.revision, state.read(Get(ALL[0])), state.next_expiry()) == (1, (), 10)


def test_history_is_available_from_any_revision_not_compacted() -> None:
    state = State()
    for value in "12345":
        state.apply(Txn(success=[Put("a", value)]), now=0)
    assert [event.value for event in state.changes_since(ALL, 4)] == ["3", "4", "5"]
    state.apply(Compact(4), now=0)
    assert [event.value for event in state.changes_since(ALL, 4)] == ["3", "4", "5"]
    with pytest.raises(Compacted):
        state.changes_since(ALL, 3)
    with pytest.raises(Compacted):
        state.apply(Compact(4), now=0)


def test_history_is_bounded() -> None:
    state = State(history=100)
    for number in range(1000):
        state.apply(Txn(success=[Put(f"k{number % 7}", "")]), now=0)
    assert 50 <= len(state.changes_since(ALL, state.compacted)) <= 100
    assert len(state.read(Get(ALL[0]))) == 7


def test_a_memory_store_follows_the_clock_it_is_given() -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    keeper = store.lease(3600, lambda _: None)
    store.put("a", "", lease=keeper.id)
    now[0] = 3599
    store.tick()
    assert store.get("a") is not None
    now[0] = 3600
    store.tick()
    assert store.get("a") is None
    store.close()


def test_a_memory_store_expires_leases_by_itself() -> None:
    store = MemoryStore()
    keeper = store.lease(0.2, lambda _: None)
    store.put("a", "", lease=keeper.id)
    keeper.stop()
    eventually(lambda: store.revision == 3)
    store.close()
