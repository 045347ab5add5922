from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from elasticjob_operator.kube import leader_election as module
from elasticjob_operator.kube.client import ConflictError, NotFoundError
from elasticjob_operator.kube.leader_election import (
    LeaderElectionConfig,
    LeaderElector,
    ObservedLease,
    may_acquire,
    observe_lease,
)

TERMS = LeaderElectionConfig(duration=15)


def lease(version: int, holder: str = "a", duration: int = 10) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration}
    return {"metadata": {"name": "elasticjob", "resourceVersion": str(version)}, "spec": spec}


def test_a_leader_stops_before_another_can_start() -> None:
    assert TERMS.renew_deadline + TERMS.retry_period < TERMS.duration
    assert 3 * TERMS.retry_period < TERMS.renew_deadline, "a renewal may fail, and so may the next"


def test_the_terms_are_those_of_client_go() -> None:
    assert (TERMS.duration, TERMS.renew_deadline, TERMS.retry_period, TERMS.attempt) == (15, 10, 2, 2)


@pytest.mark.parametrize(
    ("seen", "now", "free"),
    [
        pytest.param(ObservedLease(version="1", holder="a", duration=10, since=100), 109.9, False, id="renewed lately"),
        pytest.param(
            ObservedLease(version="1", holder="a", duration=10, since=100),
            110.1,
            True,
            id="not renewed for its duration",
        ),
        pytest.param(ObservedLease(version="1", holder="", duration=1, since=100), 100.0, True, id="given back"),
        pytest.param(
            ObservedLease(version="1", holder="a", duration=60, since=100),
            130.0,
            False,
            id="its own duration counts, not ours",
        ),
    ],
)
def test_a_lease_is_acquired_only_when_released_or_expired(seen: ObservedLease, now: float, free: bool) -> None:
    assert may_acquire(seen, now) is free


def test_the_expiry_of_a_lease_restarts_with_each_change() -> None:
    first = observe_lease(lease(1), None, 100)
    assert observe_lease(lease(1), first, 105) == first
    assert observe_lease(lease(2), first, 105).since == 105
    assert observe_lease({"metadata": {"resourceVersion": "3"}}, first, 105).holder == "", (
        "an empty Lease has no holder"
    )


class Server:
    """One Lease, with resourceVersions that are checked."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.fault: Exception | None = None
        self.silent = 0
        """How many requests get no response."""

    async def request(self, method: str, path: str, *, body: dict[str, Any] | None = None) -> dict[str, Any]:
        assert path.startswith("/apis/coordination.k8s.io/v1/namespaces/system/leases")
        if self.fault:
            raise self.fault
        if self.silent:
            self.silent -= 1
            await asyncio.Event().wait()
        if method == "GET":
            if self.lease is None:
                raise NotFoundError(404, "NotFound", "")
            return self.lease
        assert body
        known = self.lease["metadata"]["resourceVersion"] if self.lease else "0"
        if (method == "POST") is not (self.lease is None) or body["metadata"].get("resourceVersion", "0") != known:
            raise ConflictError(409, "Conflict", "")
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(int(known) + 1)}}
        return self.lease


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "_clock", lambda: self.now)

        async def sleep(seconds: float) -> None:
            self.now += seconds

        monkeypatch.setattr("asyncio.sleep", sleep)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def elector(server: Server, name: str) -> LeaderElector:
    return LeaderElector(server, "system", "elasticjob", name, TERMS)  # type: ignore[arg-type]


async def test_a_standby_takes_over_after_the_lease_duration(clock: Clock) -> None:
    server = Server()
    a, b = elector(server, "a"), elector(server, "b")
    await a.acquire()
    assert a.is_leader()
    began = clock.now
    await b.acquire()
    assert not a.is_leader()
    assert b.is_leader()
    assert TERMS.duration < clock.now - began < TERMS.duration + 2 * TERMS.retry_period
    assert server.lease
    assert server.lease["spec"]["leaseTransitions"] == 2


async def test_a_released_lease_is_acquired_at_the_next_retry(clock: Clock) -> None:
    server = Server()
    a, b = elector(server, "a"), elector(server, "b")
    await a.acquire()
    await a.release()
    assert not a.is_leader()
    began = clock.now
    await b.acquire()
    assert clock.now == began


async def test_a_restarted_leader_with_the_same_identity_continues_at_once(clock: Clock) -> None:
    """A container that crashed and was started again in its pod."""
    server = Server()
    await elector(server, "pod-1").acquire()
    again, began = elector(server, "pod-1"), clock.now
    await again.acquire()
    assert again.is_leader()
    assert clock.now == began
    assert server.lease
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_cannot_renew_stops_in_time(clock: Clock) -> None:
    server = Server()
    a = elector(server, "a")
    await a.acquire()
    began = clock.now
    server.fault = ConnectionError("down")
    await a.renew()
    assert not a.is_leader()
    assert TERMS.renew_deadline <= clock.now - began < TERMS.duration


async def test_a_leader_that_lost_its_lease_stops_at_once(clock: Clock) -> None:
    server = Server()
    a = elector(server, "a")
    await a.acquire()
    assert server.lease
    server.lease = {**lease(9, holder="b"), "metadata": {**server.lease["metadata"], "resourceVersion": "9"}}
    began = clock.now
    await a.renew()
    assert not a.is_leader()
    assert clock.now - began < TERMS.renew_deadline


async def test_a_lost_response_to_a_renewal_does_not_lose_the_lease(clock: Clock) -> None:
    server = Server()
    a = elector(server, "a")
    await a.acquire()
    assert server.lease
    server.lease = {**server.lease, "metadata": {**server.lease["metadata"], "resourceVersion": "7"}}
    looked: list[float] = []

    original = a._renew_once

    async def renew() -> None:
        looked.append(clock.now)
        if len(looked) == 4:
            server.fault = ConnectionError("down")
        await original()

    a._renew_once = renew  # type: ignore[method-assign]
    await a.renew()
    assert len(looked) > 4, "it continued after the conflict"


async def test_a_request_without_a_response_leaves_time_for_another(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    a = LeaderElector(server, "system", "elasticjob", "a", LeaderElectionConfig(duration=4))  # type: ignore[arg-type]
    await a.acquire()
    server.silent = 1
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3.2):  # longer than the renew deadline
            await a.renew()
    assert a.is_leader()
    assert "Cannot renew the Lease system/elasticjob: no response within 0.9 s" in caplog.text


async def test_a_leader_that_stops_during_a_renewal_releases_the_lease() -> None:
    """The renewal reached the API server; its response did not arrive any more."""
    server = Server()
    a = elector(server, "a")
    await a.acquire()
    assert server.lease
    server.lease = {**server.lease, "metadata": {**server.lease["metadata"], "resourceVersion": "7"}}
    await a.release()
    assert server.lease["spec"]["holderIdentity"] == ""
