"""The client with one etcd that is killed, frozen, compacted or emptied: nothing is lost or repeated, and nothing
hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from elasticjob_runtime.etcd import Delete, EtcdClient, Get, KeyRange, Put, Unavailable

from hack.support import eventually
from tests.contract.backends import Collector, by_range
from tests.contract.etcd_servers import EtcdServer
from tests.contract.proxy import Proxy
from tests.contract.writers import Writer

OpenClient = Callable[..., EtcdClient]
EVERYTHING = KeyRange.prefix("/job/")
SPLIT = [KeyRange.prefix("/job/members/"), KeyRange("/job/plan"), KeyRange.prefix("/job/stop/")]


def test_a_watch_misses_nothing_while_the_server_is_killed_again_and_again(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    client, writing = open_client(etcd_server.url), open_client(etcd_server.url)
    whole, split = Collector(), Collector()
    client.watch([EVERYTHING], 2, whole)
    client.watch(SPLIT, 2, split)
    writer = Writer(writing, ["/job/members/a", "/job/plan", "/job/members/b", "/job/stop/1"])
    for _ in range(4):
        before = len(writer.written)
        eventually(lambda before=before: len(writer.written) > before + 200)  # type: ignore[misc]
        etcd_server.kill()
        etcd_server.start()
    written = writer.stop()
    last = writing.put("/job/plan", "end")
    eventually(lambda: whole.revisions[-1:] == [last], what="the watch of everything reaches the end")
    split_end = len([e for e in whole.events if e.key != "/job/plan.fence"])
    eventually(
        lambda: len(split.revisions) >= split_end,
        what="each range reaches its end: they are in order only within a range",
    )
    fences = [e for e in whole.events if e.key.endswith(".fence")]
    plain = [e for e in whole.events if not e.key.endswith(".fence")]
    assert [(e.key, e.value, e.mod_revision) for e in plain[:-1]] == [(w.key, w.value, w.revision) for w in written]
    assert whole.revisions == sorted(set(whole.revisions))
    assert sorted(split.revisions) == [e.mod_revision for e in whole.events if e.key != "/job/plan.fence"]
    assert by_range(split.events, SPLIT) == by_range(whole.events, SPLIT)
    assert len(fences) >= writer.unclear
    assert whole.snapshots == split.snapshots == []


def test_a_watch_goes_on_after_a_restart_without_a_word_about_a_short_one(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    client = open_client(etcd_server.url)
    seen = Collector()
    client.watch([EVERYTHING], 2, seen)
    client.put("/job/a", "1")
    eventually(lambda: len(seen.events) == 1)
    etcd_server.kill()
    eventually(lambda: seen.failures, what="the receiver is told that the store is away")
    assert isinstance(seen.failures[0], Unavailable)
    assert str(etcd_server.port) in str(seen.failures[0])
    etcd_server.start()
    client.put("/job/a", "2")
    eventually(lambda: len(seen.events) == 2)
    assert len(seen.failures) == 1, "one outage is one piece of news"


def test_calls_fail_in_time_while_the_server_is_away_and_work_at_once_when_it_is_back(
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
    found = client.get("/job/a")
    assert found is not None
    assert found.value == "1"


def test_a_read_waits_for_a_server_that_restarts(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url, timeout=60)
    client.put("/job/a", "1")
    etcd_server.kill()
    found = []
    thread = threading.Thread(target=lambda: found.append(client.get("/job/a")))
    thread.start()
    etcd_server.start()
    thread.join(60)
    assert [kv.value for kv in found if kv is not None] == ["1"]


def test_a_frozen_server_ends_calls_by_their_deadline(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url)
    client.put("/job/a", "1")
    etcd_server.freeze()
    started = time.monotonic()
    with pytest.raises(Unavailable, match="no answer within the deadline"):
        client.get("/job/a", timeout=1)
    with pytest.raises(Unavailable, match="the write may have happened"):
        client.put("/job/a", "2", timeout=1)
    assert time.monotonic() - started < 30
    etcd_server.thaw()
    eventually(lambda: client.get("/job/a") is not None)


def test_a_write_to_a_frozen_server_is_not_sent_twice(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url)
    client.put("/job/counter", "1")
    etcd_server.freeze()
    with pytest.raises(Unavailable):
        client.txn((), (Put("/job/counter", "2"),), timeout=1)
    etcd_server.thaw()
    eventually(lambda: client.put("/job/end", "") > 0)
    found = client.get("/job/counter")
    assert found is not None
    assert found.version <= 2


def test_a_write_whose_answer_was_lost_is_not_sent_again(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    client, other = open_client(proxy.url), open_client(etcd_server.url)
    client.put("/job/a", "1")
    for write in (
        lambda: client.put("/job/a", "2"),
        lambda: client.txn((), (Get(EVERYTHING), Put("/job/a", "3"))),
    ):
        proxy.drop_answers(1)
        with pytest.raises(Unavailable, match="the write may have happened"):
            write()
    found = other.get("/job/a")
    assert found is not None
    assert (found.value, found.version) == ("3", 3)


def test_a_read_or_a_lease_whose_answer_was_lost_is_asked_for_again(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    client = open_client(proxy.url)
    client.put("/job/a", "1")
    proxy.drop_answers(3)
    found = client.get("/job/a", timeout=30)
    assert found is not None
    proxy.drop_answers(1)
    assert client.txn((), (Get(EVERYTHING),), timeout=30).succeeded
    proxy.drop_answers(1)
    keeper = client.lease(30, lambda _: None)
    assert client.put("/job/a", "2", lease=keeper.id) > 0
    assert len(etcd_server.call("/v3/lease/leases", {})["leases"]) == 1, "one lease, though it was asked for twice"
    proxy.drop_answers(1)
    keeper.revoke()
    assert client.get("/job/a") is None


def test_a_write_that_could_not_leave_is_sent_when_the_server_is_back(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    client = open_client(etcd_server.url)
    client.put("/job/a", "1")
    etcd_server.kill()
    revisions: list[int] = []
    thread = threading.Thread(target=lambda: revisions.append(client.put("/job/a", "2", timeout=60)))
    thread.start()
    etcd_server.start()
    thread.join(60)
    found = client.get("/job/a")
    assert found is not None
    assert (found.value, found.version, [found.mod_revision]) == ("2", 2, revisions)


def test_a_watch_finds_out_that_its_server_is_frozen_and_misses_nothing(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    client = open_client(etcd_server.url, probe_interval=0.5)
    seen = Collector()
    client.watch([EVERYTHING, KeyRange("/other")], 2, seen)
    first = client.put("/job/a", "1")
    eventually(lambda: seen.events)
    etcd_server.freeze()
    eventually(lambda: seen.failures, what="the watch says that its server does not answer")
    etcd_server.thaw()
    second = client.put("/job/a", "2", timeout=30)
    eventually(lambda: second in seen.revisions)
    assert seen.revisions == [first, second]


def test_an_idle_watch_survives_many_probes(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url, probe_interval=0.1)
    seen = Collector()
    client.watch([EVERYTHING, KeyRange("/x")], 2, seen)
    time.sleep(1.5)  # about 15 probes
    revision = client.put("/job/a", "1")
    eventually(lambda: seen.revisions == [revision])
    client.txn((), (Delete(KeyRange("/job/a")),))
    time.sleep(0.5)
    eventually(lambda: seen.revisions == [revision, revision + 1])
    assert seen.failures == []


def test_a_lease_survives_a_restart_and_tells_until_when_it_is_sure(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    lost: list[str] = []
    client = open_client(etcd_server.url)
    keeper = client.lease(4, lost.append)
    client.put("/job/me", "", lease=keeper.id)
    etcd_server.kill()
    sure = keeper.expires_at
    time.sleep(2)
    assert keeper.expires_at == sure, "nothing was renewed, so nothing is promised"
    etcd_server.start()
    eventually(lambda: keeper.expires_at > sure, what="the lease is renewed")
    assert client.get("/job/me") is not None
    assert lost == []


def test_a_lease_that_ended_while_the_server_could_not_be_reached_is_reported(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    lost: list[str] = []
    client = open_client(etcd_server.url)
    keeper = client.lease(2, lost.append)
    client.put("/job/me", "", lease=keeper.id)
    etcd_server.freeze()
    eventually(lambda: time.monotonic() > keeper.expires_at + 1)
    assert lost == [], "only the store knows whether the lease is gone"
    etcd_server.thaw()
    eventually(lambda: lost)
    assert len(lost) == 1
    assert client.get("/job/me") is None


def test_compaction_while_away_gives_a_snapshot_and_then_the_news(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    client, other = open_client(proxy.url), open_client(etcd_server.url)
    seen = Collector()
    client.watch([KeyRange.prefix("/job/a/"), KeyRange.prefix("/job/b/")], 2, seen)
    first = other.put("/job/a/1", "1")
    eventually(lambda: seen.revisions == [first])
    proxy.refuse()
    other.put("/job/a/1", "2")
    other.put("/job/b/1", "3")
    revision = other.put("/elsewhere", "")
    etcd_server.compact(revision)
    proxy.admit()
    eventually(lambda: seen.snapshots)
    last = other.put("/job/b/1", "4")
    eventually(lambda: seen.revisions == [first, last])
    assert [[(kv.key, kv.value) for kv in snapshot] for snapshot in seen.snapshots] == [
        [("/job/a/1", "2"), ("/job/b/1", "3")]
    ]
    assert [update.revision for update in seen.updates] == [first, revision, last]


def test_a_watch_resumes_after_every_cut_of_its_connection(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    client, other = open_client(proxy.url), open_client(etcd_server.url)
    whole, split = Collector(), Collector()
    client.watch([EVERYTHING], 2, whole)
    client.watch([KeyRange("/job/plan"), KeyRange.prefix("/job/stop/")], 2, split)
    writer = Writer(other, ["/job/plan", "/job/stop/1", "/job/stop/2"])
    for _ in range(15):
        before = len(writer.written)
        eventually(lambda before=before: len(writer.written) > before + 50)  # type: ignore[misc]
        proxy.cut()
    written = [w.revision for w in writer.stop()]
    eventually(lambda: len(whole.revisions) >= len(written) and len(split.revisions) >= len(written))
    assert whole.revisions == sorted(split.revisions) == written
    assert by_range(split.events, SPLIT) == by_range(whole.events, SPLIT)
    assert whole.snapshots == split.snapshots == []


def test_a_stream_that_fell_silent_is_replaced(etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy) -> None:
    """A half-open connection: the server still answers, but this stream delivers nothing, and neither side notices."""
    client, other = open_client(proxy.url, probe_interval=0.5), open_client(etcd_server.url)
    seen = Collector()
    client.watch([KeyRange("/job/plan"), KeyRange.prefix("/job/stop/")], 2, seen)
    revisions = [other.put("/job/plan", "1")]
    eventually(lambda: seen.revisions == revisions)
    proxy.silence()
    revisions += [other.put("/job/plan", "2"), other.put("/job/stop/1", "")]
    eventually(lambda: len(seen.revisions) >= 3)
    assert sorted(seen.revisions) == revisions


def test_a_stream_that_fell_silent_before_a_deletion_is_replaced(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    """A deletion leaves no key newer than what the stream has delivered, so agents would never notice a lost member."""
    client, other = open_client(proxy.url, probe_interval=0.5), open_client(etcd_server.url)
    seen = Collector()
    other.put("/job/members/a", "")
    client.watch([KeyRange("/job/plan"), KeyRange.prefix("/job/members/")], 2, seen)
    revisions = [other.put("/job/members/b", "")]
    eventually(lambda: len(seen.revisions) == 2)
    time.sleep(1.5)  # the first probes find no difference
    proxy.silence()
    other.txn([], [Delete(KeyRange("/job/members/b"))])
    eventually(lambda: len(seen.revisions) == 3)
    assert seen.revisions[-1] == revisions[-1] + 1


def test_a_store_that_lost_its_data_gives_a_snapshot(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    """When a single member without a volume is rescheduled, the new one starts at revision 1."""
    client = open_client(etcd_server.url)
    lost: list[str] = []
    seen = Collector()
    client.watch([KeyRange.prefix("/job/"), KeyRange("/other")], 2, seen)
    keeper = client.lease(60, lost.append)
    for i in range(50):
        client.put(f"/job/{i}", "old", lease=keeper.id)
    eventually(lambda: len(seen.events) == 50)
    etcd_server.kill()
    etcd_server.wipe()
    etcd_server.start()
    client.put("/job/1", "new")
    eventually(lambda: ("/job/1", "new") in seen.changes or seen.snapshots, what="the watch starts over")
    eventually(lambda: ("/job/1", "new") in seen.changes or any(kv.value == "new" for kv in seen.snapshots[-1]))
    after = client.put("/job/2", "newer")
    eventually(lambda: seen.revisions[-1] == after)
    assert len(seen.snapshots) == 1


def test_cancel_and_close_do_not_wait_for_a_frozen_server(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url, timeout=60)
    before = {t.name for t in threading.enumerate()}
    watch = client.watch([EVERYTHING], 2, Collector())
    client.watch([EVERYTHING], 2, Collector())
    keeper = client.lease(30, lambda _: None)
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
    keeper.stop()
    client.close()
    client.close()
    asking.join(30)
    assert time.monotonic() - started < 20
    assert isinstance(answers[0], Unavailable)
    eventually(lambda: {t.name for t in threading.enumerate()} <= before, what="all threads of the client end")
    with pytest.raises(Unavailable, match="closed"):
        client.range(Get(EVERYTHING))
