"""The client with a cluster of three members, some of which are killed or frozen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from elasticjob_runtime.etcd import Compare, EtcdClient, KeyRange, Put, Unavailable

from hack.support import eventually
from tests.contract.backends import Collector, OpenClient, by_range, watched
from tests.contract.etcd_servers import EtcdServer, three_members
from tests.contract.writers import Writer


@pytest.fixture
def members(etcd_program: Path, tmp_path: Path) -> Iterator[list[EtcdServer]]:
    members = three_members(etcd_program, tmp_path)
    yield members
    for member in members:
        member.stop()


def endpoints(members: list[EtcdServer]) -> str:
    return ",".join(member.url for member in members)


def test_killing_any_member_loses_no_write_no_event_and_no_lease(
    members: list[EtcdServer], open_client: OpenClient
) -> None:
    """Kills each member in turn, and with it every client's endpoint and the leader."""
    lost: list[str] = []
    clients = [open_client(endpoints(members)) for _ in range(3)]
    seen = [Collector() for _ in clients]
    ranges = [KeyRange.prefix("/job/a/"), KeyRange("/job/b")]
    for client, collector in zip(clients, seen, strict=True):
        client.watch(ranges, 2, collector)
    leases = [client.lease(30, lost.append) for client in clients]
    for number, (client, lease) in enumerate(zip(clients, leases, strict=True)):
        client.put(f"/members/{number}", "", lease=lease.id)
    writer = Writer(open_client(endpoints(members)), ["/job/a/1", "/job/b", "/job/a/2"])
    for member in members:
        before = len(writer.written)
        member.kill()
        eventually(lambda before=before: len(writer.written) > before + 100)  # type: ignore[misc]
        member.start()
    written = [write.revision for write in writer.stop()]
    for number, collector in enumerate(seen):
        eventually(lambda collector=collector: written[-1] in collector.revisions)  # type: ignore[misc]
        plain = [event for event in collector.events if not event.key.endswith(".fence")]
        assert sorted(event.mod_revision for event in plain) == written, number
        for events in by_range(plain, ranges):
            assert [event.mod_revision for event in events] == sorted(event.mod_revision for event in events)
        assert collector.snapshots == []
    assert lost == []
    assert [clients[0].get(f"/members/{number}") is not None for number in range(3)] == [True] * 3


def test_without_a_quorum_calls_fail_in_time_and_watches_resume_later(
    members: list[EtcdServer], open_client: OpenClient
) -> None:
    client = open_client(endpoints(members), timeout=3, probe_interval=0.5)
    seen = watched(client, KeyRange("/a"), KeyRange("/b"))
    first = client.put("/a", "1")
    eventually(lambda: seen.revisions == [first])
    members[0].kill()
    members[1].kill()
    with pytest.raises(Unavailable):
        client.get("/a")
    with pytest.raises(Unavailable):
        client.txn((Compare("/a", mod_revision=first),), (Put("/a", "2"),))
    eventually(lambda: seen.failures, what="the watch reports that it is interrupted")
    members[0].start()
    members[1].start()
    eventually(lambda: _put(client))
    end = client.put("/b", "end")
    eventually(lambda: seen.revisions[-1:] == [end])
    assert seen.revisions == sorted(set(seen.revisions))
    assert seen.snapshots == []


def _put(client: EtcdClient) -> bool:
    try:
        return client.put("/b", "back") > 0
    except Unavailable:
        return False
