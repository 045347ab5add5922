"""Calls and leases while their etcd is killed or frozen, or responses are lost: nothing is written twice, and nothing
hangs."""

from __future__ import annotations

import concurrent.futures
import threading
import time

import pytest
from elasticjob_runtime.etcd import Get, KeyRange, Put, Unavailable

from hack.support import eventually
from tests.contract.backends import Collector, OpenClient, present
from tests.contract.etcd_servers import EtcdServer
from tests.contract.proxy import Proxy

EVERYTHING = KeyRange.prefix("/job/")


def test_calls_fail_in_time_during_an_outage_and_succeed_after_it(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    client = open_client(etcd_server.url)
    client.put("/job/a", "1")
    etcd_server.kill()
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"no etcd answered within 0\.5 s: .*refused"):
        client.get("/job/a", timeout=0.5)
    with pytest.raises(Unavailable):
        client.put("/job/a", "2", timeout=0.5)
    assert time.monotonic() - started < 30
    etcd_server.start()
    assert present(client, "/job/a").value == "1"


def test_calls_to_a_frozen_server_end_at_their_deadline_and_no_write_is_sent_twice(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    client = open_client(etcd_server.url)
    client.put("/job/a", "1")
    etcd_server.freeze()
    started = time.monotonic()
    with pytest.raises(Unavailable, match="no answer within the deadline"):
        client.get("/job/a", timeout=1)
    with pytest.raises(Unavailable, match="the write may have happened"):
        client.txn((), (Put("/job/a", "2"),), timeout=1)
    assert time.monotonic() - started < 30
    etcd_server.thaw()
    eventually(lambda: client.put("/job/end", "") > 0)
    assert present(client, "/job/a").version <= 2


def test_a_write_whose_response_is_lost_is_not_repeated(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    client, other = open_client(proxy.url), open_client(etcd_server.url)
    client.put("/job/a", "1")
    for write in (lambda: client.put("/job/a", "2"), lambda: client.txn((), (Get(EVERYTHING), Put("/job/a", "3")))):
        proxy.drop_answers(1)
        with pytest.raises(Unavailable, match="the write may have happened"):
            write()
    found = present(other, "/job/a")
    assert (found.value, found.version) == ("3", 3)


def test_a_read_or_lease_grant_whose_response_is_lost_is_repeated(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    client = open_client(proxy.url)
    client.put("/job/a", "1")
    proxy.drop_answers(3)
    assert client.get("/job/a", timeout=30) is not None
    proxy.drop_answers(1)
    assert client.txn((), (Get(EVERYTHING),), timeout=30).succeeded
    proxy.drop_answers(1)
    lease = client.lease(30, lambda _: None)
    assert client.put("/job/a", "2", lease=lease.id) > 0
    assert len(etcd_server.call("/v3/lease/leases", {})["leases"]) == 1, "one lease, although it was requested twice"
    proxy.drop_answers(1)
    lease.revoke()
    assert client.get("/job/a") is None


def test_a_read_and_a_write_that_was_never_sent_wait_for_a_restarting_server(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    client = open_client(etcd_server.url, timeout=60)
    client.put("/job/a", "1")
    client.put("/job/b", "1")
    etcd_server.kill()
    with concurrent.futures.ThreadPoolExecutor() as calls:
        read, write = calls.submit(client.get, "/job/a"), calls.submit(client.put, "/job/b", "2")
        etcd_server.start()
        assert read.result(60) == present(client, "/job/a")
        found = present(client, "/job/b")
        assert (found.value, found.version, found.mod_revision) == ("2", 2, write.result(60))


def test_a_lease_survives_a_restart_and_is_not_extended_during_it(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    lost: list[str] = []
    client = open_client(etcd_server.url)
    lease = client.lease(4, lost.append)
    client.put("/job/me", "", lease=lease.id)
    etcd_server.kill()
    expiry = lease.expires_at
    time.sleep(1)
    assert lease.expires_at == expiry, "the lease was not renewed, so its expiry stays"
    etcd_server.start()
    eventually(lambda: lease.expires_at > expiry, what="the lease is renewed")
    assert client.get("/job/me") is not None
    assert lost == []


def test_a_lease_that_expired_during_an_outage_is_reported(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    lost: list[str] = []
    client = open_client(etcd_server.url)
    lease = client.lease(2, lost.append)
    client.put("/job/me", "", lease=lease.id)
    etcd_server.freeze()
    eventually(lambda: time.monotonic() > lease.expires_at + 1)
    assert lost == [], "only the store knows whether the lease is gone"
    etcd_server.thaw()
    eventually(lambda: lost)
    assert len(lost) == 1
    assert client.get("/job/me") is None


def test_cancel_and_close_do_not_wait_for_a_frozen_server(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url, timeout=60)
    before = {t.name for t in threading.enumerate()}
    watch = client.watch([EVERYTHING], 2, Collector())
    client.watch([EVERYTHING], 2, Collector())
    lease = client.lease(30, lambda _: None)
    etcd_server.freeze()
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(client.get("/job/a"))
        except Unavailable as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    started = time.monotonic()
    watch.cancel()
    lease.stop()
    client.close()
    client.close()
    asking.join(30)
    assert time.monotonic() - started < 20
    assert isinstance(answers[0], Unavailable)
    eventually(lambda: {t.name for t in threading.enumerate()} <= before, what="all threads of the client end")
    with pytest.raises(Unavailable, match="closed"):
        client.range(Get(EVERYTHING))
