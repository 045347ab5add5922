"""Renewing a lease, with a fake store and clock."""

from __future__ import annotations

import threading
import time

from elasticjob_runtime.etcd import LeaseLost, Unavailable
from elasticjob_runtime.etcd.lease import KeptLease

from hack.support import eventually


class FakeStore:
    """Renewals take their outcome from `outcomes`, and repeat the last one; each advances the clock by `cost`."""

    def __init__(self, *outcomes: float | Exception, cost: float = 0.0) -> None:
        self.now = 100.0
        self.cost = cost
        self.renewals: list[float] = []
        self.revoked = 0
        self.lost: list[str] = []
        self.ended = threading.Event()
        self._outcomes = list(outcomes)

    def keep(self, ttl: float, granted_at: float = 100.0) -> KeptLease:
        return KeptLease(
            7, ttl, granted_at, self.renew, self.revoke, self.on_lost,
            interrupt=lambda: None, on_end=lambda _: self.ended.set(), clock=lambda: self.now,
        )  # fmt: skip

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        raise RuntimeError("the owner has a bug")

    def renew(self) -> float:
        self.renewals.append(self.now)
        self.now += self.cost
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def revoke(self) -> None:
        self.revoked += 1
        raise Unavailable("down")


def test_the_expiry_counts_from_when_the_renewal_was_sent() -> None:
    store = FakeStore(0.09, cost=5.0)
    lease = store.keep(0.09)
    eventually(lambda: store.renewals)
    eventually(lambda: lease.expires_at >= store.renewals[0] + 0.09)
    assert lease.expires_at < store.renewals[-1] + 5
    lease.stop()


def test_a_lease_is_renewed_three_times_within_its_ttl() -> None:
    store = FakeStore(30.0)
    lease = store.keep(30.0, granted_at=90.05)  # the first is due in 0.05 s
    eventually(lambda: len(store.renewals) == 1)
    time.sleep(0.2)
    assert len(store.renewals) == 1, "the next one is due in 10 s"
    assert lease.expires_at == 130.0
    lease.stop()
    assert store.ended.wait(10)


def test_the_ttl_granted_by_the_store_counts() -> None:
    store = FakeStore(50.0)
    lease = store.keep(0.03)
    eventually(lambda: lease.ttl == 50.0)
    assert lease.expires_at == 150.0
    lease.stop()


def test_renewal_is_retried_while_the_store_is_down_and_the_expiry_stays() -> None:
    store = FakeStore(Unavailable("down"))
    lease = store.keep(0.2)
    before = lease.expires_at
    eventually(lambda: len(store.renewals) > 20)
    assert lease.expires_at == before
    assert store.lost == []
    lease.stop()
    assert store.ended.wait(10)
    count = len(store.renewals)
    time.sleep(0.1)
    assert len(store.renewals) == count


def test_only_the_store_ends_a_lease_and_that_is_reported_once_even_if_the_owner_fails() -> None:
    store = FakeStore(Unavailable("down"), 0.05, LeaseLost("expired"))
    lease = store.keep(0.05)
    assert store.ended.wait(10)
    assert store.lost == ["expired"]
    assert len(store.renewals) == 3
    lease.stop()
    lease.revoke()
    assert store.lost == ["expired"]


def test_a_lost_lease_is_not_reported_after_stop() -> None:
    blocked, leave = threading.Event(), threading.Event()

    class Slow(FakeStore):
        def renew(self) -> float:
            blocked.set()
            leave.wait(10)
            return super().renew()

    store = Slow(LeaseLost("revoked by myself"))
    lease = store.keep(0.03)
    blocked.wait(10)
    lease.revoke()
    leave.set()
    assert store.ended.wait(10)
    assert store.lost == []


def test_revoking_while_the_store_is_down_is_no_error() -> None:
    store = FakeStore(30.0)
    lease = store.keep(30.0)
    lease.revoke()
    lease.revoke()
    assert store.revoked == 2
    assert store.ended.wait(10)


def test_an_internal_error_of_the_renewal_is_reported_as_a_lost_lease() -> None:
    """If the thread just ended, the lease would expire and the member would be lost without a reason in any log."""
    store = FakeStore(TimeoutError("not a StoreError"))
    store.keep(0.03)
    assert store.ended.wait(10)
    assert store.lost == ["its renewal failed: TimeoutError('not a StoreError')"]
