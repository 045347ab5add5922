"""Leases behave the same on every store."""

from __future__ import annotations

import threading
import time

import pytest
from elasticjob_runtime.etcd import LeaseLost, Put, Store

from hack.support import eventually
from tests.contract.backends import Backend, present

TTL = 2.0
"""Seconds; the shortest TTL that etcd grants."""


def unexpected(reason: str) -> None:
    raise AssertionError(reason)


def test_a_renewed_lease_outlives_its_ttl_and_knows_its_expiry(store: Store, prefix: str) -> None:
    before = time.monotonic()
    lease = store.lease(TTL, unexpected)
    try:
        store.put(prefix + "me", "here", lease=lease.id)
        assert before + TTL <= lease.expires_at <= time.monotonic() + TTL
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first + TTL, what="the lease is renewed twice")
        assert present(store, prefix + "me").lease == lease.id
    finally:
        lease.revoke()


def test_revoking_a_lease_deletes_its_keys_at_once(store: Store, prefix: str) -> None:
    lease = store.lease(60, unexpected)
    store.put(prefix + "a", "", lease=lease.id)
    store.txn((), (Put(prefix + "b", "", lease.id), Put(prefix + "c", "")))
    lease.revoke()
    assert [store.get(prefix + name) is None for name in "abc"] == [True, True, False]
    lease.revoke()  # idempotent
    lease.stop()
    with pytest.raises(LeaseLost):
        store.put(prefix + "a", "", lease=lease.id)


def test_a_lease_that_is_not_renewed_expires(store: Store, prefix: str) -> None:
    lease = store.lease(TTL, unexpected)
    store.put(prefix + "a", "", lease=lease.id)
    lease.stop()
    lease.stop()
    assert store.get(prefix + "a") is not None
    eventually(lambda: store.get(prefix + "a") is None, what="the lease's key is deleted")


def test_a_lost_lease_is_reported_once(backend: Backend, prefix: str) -> None:
    reasons: list[str] = []
    lease = backend.store.lease(TTL, reasons.append)
    backend.store.put(prefix + "a", "", lease=lease.id)
    backend.revoke(lease.id)
    eventually(lambda: reasons, what="on_lost is called")
    name = f"lease-{lease.id:x}"
    eventually(lambda: name not in {thread.name for thread in threading.enumerate()}, what="the renewal ends")
    assert len(reasons) == 1
    assert backend.store.get(prefix + "a") is None


def test_a_key_moved_to_another_lease_outlives_the_first(store: Store, prefix: str) -> None:
    old, new = store.lease(60, unexpected), store.lease(60, unexpected)
    store.put(prefix + "a", "1", lease=old.id)
    store.put(prefix + "a", "2", lease=new.id)
    store.put(prefix + "b", "1", lease=old.id)
    store.put(prefix + "b", "2")
    old.revoke()
    assert [store.get(prefix + name) is not None for name in "ab"] == [True, True]
    new.revoke()
    assert [store.get(prefix + name) is not None for name in "ab"] == [False, True]


def test_revoking_one_lease_leaves_the_others(store: Store, prefix: str) -> None:
    leases = [store.lease(60, unexpected) for _ in range(5)]
    assert len({lease.id for lease in leases}) == 5
    for number, lease in enumerate(leases):
        store.put(f"{prefix}{number}", "", lease=lease.id)
    leases[2].revoke()
    assert [store.get(f"{prefix}{number}") is None for number in range(5)] == [False, False, True, False, False]
    for lease in leases:
        lease.revoke()
