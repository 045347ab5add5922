"""Leases behave the same on every store."""

from __future__ import annotations

import threading
import time

import pytest
from elasticjob_runtime.etcd import LeaseLost, Put, Store

from hack.support import eventually
from tests.contract.backends import Backend

TTL = 2.0
"""Seconds; the shortest TTL that etcd grants."""


def unexpected(reason: str) -> None:
    raise AssertionError(reason)


def test_a_kept_lease_outlives_its_ttl_and_says_until_when_it_holds(store: Store, prefix: str) -> None:
    before = time.monotonic()
    keeper = store.lease(TTL, unexpected)
    try:
        store.put(prefix + "me", "here", lease=keeper.id)
        assert before + TTL <= keeper.expires_at <= time.monotonic() + TTL
        first = keeper.expires_at
        eventually(lambda: keeper.expires_at > first + TTL, what="the lease is renewed, and renewed again")
        found = store.get(prefix + "me")
        assert found is not None
        assert found.lease == keeper.id
    finally:
        keeper.revoke()


def test_a_revoked_lease_takes_its_keys_along_at_once(store: Store, prefix: str) -> None:
    keeper = store.lease(60, unexpected)
    store.put(prefix + "a", "", lease=keeper.id)
    store.txn((), (Put(prefix + "b", "", keeper.id), Put(prefix + "c", "")))
    keeper.revoke()
    assert [store.get(prefix + name) is None for name in "abc"] == [True, True, False]
    keeper.revoke()  # idempotent
    keeper.stop()
    with pytest.raises(LeaseLost):
        store.put(prefix + "a", "", lease=keeper.id)


def test_a_lease_that_nobody_renews_ends_by_itself(store: Store, prefix: str) -> None:
    keeper = store.lease(TTL, unexpected)
    store.put(prefix + "a", "", lease=keeper.id)
    keeper.stop()
    keeper.stop()
    assert store.get(prefix + "a") is not None
    eventually(lambda: store.get(prefix + "a") is None, what="the lease's key goes")


def test_the_owner_learns_once_that_its_lease_is_gone(backend: Backend, prefix: str) -> None:
    reasons: list[str] = []
    keeper = backend.store.lease(TTL, reasons.append)
    backend.store.put(prefix + "a", "", lease=keeper.id)
    backend.revoke(keeper.id)
    eventually(lambda: reasons, what="on_lost is called")
    name = f"lease-{keeper.id:x}"
    eventually(lambda: name not in {thread.name for thread in threading.enumerate()}, what="the keeper ends")
    assert len(reasons) == 1
    assert backend.store.get(prefix + "a") is None


def test_a_key_that_moved_to_another_lease_stays(store: Store, prefix: str) -> None:
    old, new = store.lease(60, unexpected), store.lease(60, unexpected)
    store.put(prefix + "a", "1", lease=old.id)
    store.put(prefix + "a", "2", lease=new.id)
    store.put(prefix + "b", "1", lease=old.id)
    store.put(prefix + "b", "2")
    old.revoke()
    assert [store.get(prefix + name) is not None for name in "ab"] == [True, True]
    new.revoke()
    assert [store.get(prefix + name) is not None for name in "ab"] == [False, True]


def test_leases_are_independent(store: Store, prefix: str) -> None:
    keepers = [store.lease(60, unexpected) for _ in range(5)]
    assert len({keeper.id for keeper in keepers}) == 5
    for number, keeper in enumerate(keepers):
        store.put(f"{prefix}{number}", "", lease=keeper.id)
    keepers[2].revoke()
    assert [store.get(f"{prefix}{number}") is None for number in range(5)] == [False, False, True, False, False]
    for keeper in keepers:
        keeper.revoke()
