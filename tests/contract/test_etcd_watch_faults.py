"""Watches while their etcd is killed, frozen, compacted or emptied, or their connection is cut or silent: nothing is
lost or repeated."""

from __future__ import annotations

import time

from elasticjob_runtime.etcd import Delete, KeyRange, Unavailable

from hack.support import eventually
from tests.contract.backends import OpenClient, by_range, watched
from tests.contract.etcd_servers import EtcdServer
from tests.contract.proxy import Proxy
from tests.contract.writers import Writer

EVERYTHING = KeyRange.prefix("/job/")
SPLIT = [KeyRange.prefix("/job/members/"), KeyRange("/job/plan"), KeyRange.prefix("/job/stop/")]


def test_a_watch_misses_nothing_while_its_server_is_killed_repeatedly(
    etcd_server: EtcdServer, open_client: OpenClient
) -> None:
    client, writing = open_client(etcd_server.url), open_client(etcd_server.url)
    whole, split = watched(client, EVERYTHING), watched(client, *SPLIT)
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


def test_an_outage_is_reported_to_a_watch_once(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url)
    seen = watched(client, EVERYTHING)
    client.put("/job/a", "1")
    eventually(lambda: len(seen.events) == 1)
    etcd_server.kill()
    eventually(lambda: seen.failures, what="the callback receives the failure")
    assert isinstance(seen.failures[0], Unavailable)
    assert str(etcd_server.port) in str(seen.failures[0])
    etcd_server.start()
    client.put("/job/a", "2")
    eventually(lambda: len(seen.events) == 2)
    assert len(seen.failures) == 1, "one outage is reported once"


def test_a_watch_detects_a_frozen_server_and_misses_nothing(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url, probe_interval=0.5)
    seen = watched(client, EVERYTHING, KeyRange("/other"))
    first = client.put("/job/a", "1")
    eventually(lambda: seen.events)
    etcd_server.freeze()
    eventually(lambda: seen.failures, what="the watch reports that its server does not respond")
    etcd_server.thaw()
    second = client.put("/job/a", "2", timeout=30)
    eventually(lambda: second in seen.revisions)
    assert seen.revisions == [first, second]


def test_an_idle_watch_survives_many_probes(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    client = open_client(etcd_server.url, probe_interval=0.1)
    seen = watched(client, EVERYTHING, KeyRange("/x"))
    time.sleep(0.5)  # about 5 probes
    revision = client.put("/job/a", "1")
    eventually(lambda: seen.revisions == [revision])
    client.txn((), (Delete(KeyRange("/job/a")),))
    eventually(lambda: seen.revisions == [revision, revision + 1])


def test_a_compaction_during_an_outage_gives_a_snapshot_and_then_changes(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    client, other = open_client(proxy.url), open_client(etcd_server.url)
    seen = watched(client, KeyRange.prefix("/job/a/"), KeyRange.prefix("/job/b/"))
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


def test_a_watch_resumes_whenever_its_connection_is_cut(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    client, other = open_client(proxy.url), open_client(etcd_server.url)
    whole, split = watched(client, EVERYTHING), watched(client, KeyRange("/job/plan"), KeyRange.prefix("/job/stop/"))
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


def test_a_silent_stream_is_replaced(etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy) -> None:
    """A half-open connection: the server still answers, but this stream delivers nothing, and neither side notices."""
    client, other = open_client(proxy.url, probe_interval=0.5), open_client(etcd_server.url)
    seen = watched(client, KeyRange("/job/plan"), KeyRange.prefix("/job/stop/"))
    revisions = [other.put("/job/plan", "1")]
    eventually(lambda: seen.revisions == revisions)
    proxy.silence()
    revisions += [other.put("/job/plan", "2"), other.put("/job/stop/1", "")]
    eventually(lambda: len(seen.revisions) >= 3)
    assert sorted(seen.revisions) == revisions


def test_a_silent_stream_that_missed_only_a_deletion_is_replaced(
    etcd_server: EtcdServer, open_client: OpenClient, proxy: Proxy
) -> None:
    """A deletion leaves no key newer than what the stream has delivered, so agents would never notice a lost member."""
    client, other = open_client(proxy.url, probe_interval=0.5), open_client(etcd_server.url)
    other.put("/job/members/a", "")
    seen = watched(client, KeyRange("/job/plan"), KeyRange.prefix("/job/members/"))
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
    seen = watched(client, KeyRange.prefix("/job/"), KeyRange("/other"))
    lease = client.lease(60, lost.append)
    for i in range(50):
        client.put(f"/job/{i}", "old", lease=lease.id)
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
