"""The Leases of shards, in virtual time: who leads, for how long no replica does, and that never two do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from elasticjob_operator.kube import shard_leases as module
from elasticjob_operator.policies.shards import SHARDS_ANNOTATION, WANTED_ANNOTATION

from tests.unit.operator.kube.lease_server import TERMS, Fleet, in_virtual_time

LEASE = TERMS.duration
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda work: in_virtual_time(work, monkeypatch)


def test_a_leader_stops_before_another_can_start() -> None:
    assert TERMS.renew_deadline + TERMS.retry_period < TERMS.duration
    assert 3 * TERMS.retry_period < TERMS.renew_deadline, "a renewal may fail, and so may the next"


def test_the_shards_are_divided_evenly_among_any_number_of_replicas(run: Run) -> None:
    async def work() -> None:
        fleet = Fleet()
        for number, shares in enumerate(([8], [4, 4], [2, 3, 3], [2, 2, 2, 2])):
            fleet.start(f"r{number}", 8)
            await fleet.run(LEASE + 20)
            assert fleet.shares() == shares
            assert fleet.longest < LEASE + 1, "of the first one, which cannot know whether a Lease was deleted"
        fleet.longest = 0.0
        for number in range(4, 10):
            fleet.start(f"r{number}", 8)
        await fleet.run(30)
        assert fleet.shares() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1], "more replicas than shards"
        assert fleet.longest < 1.5

    run(work())


def test_the_jobs_of_a_killed_replica_are_led_again_within_a_lease(run: Run) -> None:
    async def work() -> None:
        fleet = Fleet()
        for name in "abc":
            fleet.start(name, 8)
        await fleet.settle()
        others = [job for job in fleet.without if fleet.leaders(job) != ["a"]]
        await fleet.end("a", kill=True)
        for _ in range(10):
            await fleet.run(0.5)
            assert max(fleet.without[job] for job in others) < 1.5, "those of others wait for a handover at most"
        assert LEASE / 2 < fleet.longest < 5
        await fleet.settle()

    run(work())


def test_an_upgrade_hands_over_the_shards_of_one_replica_after_another(run: Run) -> None:
    async def work() -> None:
        fleet = Fleet()
        for name in "abc":
            fleet.start(name, 8)
        await fleet.settle()
        for name in "abc":
            fleet.start(f"new-{name}", 8)
            await fleet.run(10)
            await fleet.end(name)
            await fleet.run(5)
        assert fleet.longest < 1.5, "a released Lease is acquired after the next read"
        await fleet.run(10)
        assert fleet.shares() == [2, 3, 3]

    run(work())


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 8), (8, 4), (4, 1)])
def test_a_changed_number_of_shards_waits_until_no_replica_leads_with_the_former(
    run: Run, before: int, after: int
) -> None:
    async def work() -> None:
        fleet = Fleet()
        for name in "ab":
            fleet.start(name, before)
        await fleet.settle()
        new = fleet.start("new", after)
        await fleet.run(10)
        assert not new.leases.led
        assert f"has {after} shards: it waits" in new.leases.status
        for name in "ab":
            await fleet.end(name)
            await fleet.run(5)
        await fleet.settle()
        assert sum(fleet.shares()) == after

    run(work())


def test_two_releases_with_different_numbers_that_start_together(run: Run) -> None:
    async def work() -> None:
        for seed in range(4):
            fleet = Fleet(seed)
            for number, count in enumerate((4, 8, 4, 8)):
                fleet.start(f"r{number}", count)
            await fleet.settle()
            assert sum(fleet.shares()) in (4, 8), "one of the two"
            for name in list(fleet.replicas):
                await fleet.end(name, kill=True)

    run(work())


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"holderIdentity": "mallory"}, id="another holder"),
        pytest.param({"holderIdentity": ""}, id="no holder"),
        pytest.param({"holderIdentity": "b"}, id="another replica"),
        pytest.param({"renewTime": "2001-01-01T00:00:00.000000Z"}, id="another time"),
        pytest.param({"leaseDurationSeconds": 10**6}, id="a long duration"),
        pytest.param({"leaseTransitions": 2**31 - 1, "holderIdentity": "mallory"}, id="the last transition"),
    ],
)
def test_a_lease_that_someone_edits_has_never_two_leaders_and_soon_one(run: Run, spec: dict[str, Any]) -> None:
    async def work() -> None:
        fleet = Fleet()
        for name in "ab":
            fleet.start(name, 2)
        await fleet.settle()
        mine = next(iter(fleet.replicas["a"].leases.led))
        fleet.server.edit("op-shard-1" if mine else "op", **spec)
        await fleet.run(LEASE + 2)
        assert fleet.longest < LEASE + 1
        await fleet.settle()

    run(work())


@pytest.mark.parametrize("name", ["op", "op-shard-1"])
def test_a_lease_that_someone_deletes_or_marks_has_never_two_leaders(run: Run, name: str) -> None:
    async def work() -> None:
        fleet = Fleet()
        for replica in "ab":
            fleet.start(replica, 2)
        await fleet.settle()
        del fleet.server.leases[name]
        await fleet.run(LEASE + 2)
        assert fleet.longest < LEASE + 1
        lease = fleet.server.leases[name]
        fleet.server.store({**lease, "metadata": {**lease["metadata"], "annotations": {SHARDS_ANNOTATION: "x"}}})
        await fleet.run(LEASE)
        assert fleet.longest < LEASE + 1
        await fleet.settle()

    run(work())


def test_a_lease_that_cannot_be_written_is_tried_again_with_pauses(run: Run) -> None:
    async def work() -> None:
        fleet = Fleet()
        fleet.server.rejects = True
        fleet.start("a", 2)
        await fleet.run(20)
        assert fleet.server.requests < 3 * 1.2 * 20 / TERMS.retry_period, "a read and two writes each time"
        fleet.server.rejects = False
        await fleet.settle()

    run(work())


def test_leases_of_no_shard_are_left_alone(run: Run) -> None:
    async def work() -> None:
        fleet = Fleet()
        annotations = {SHARDS_ANNOTATION: "9" * 5000}
        for name in ("op-shard-01", "op-shard-7", "op-shard-1x"):
            fleet.server.store({"metadata": {"name": name, "annotations": annotations}, "spec": {}})
        fleet.start("a", 2)
        await fleet.settle()
        assert fleet.shares() == [2]

    run(work())


@pytest.mark.parametrize("number", ["x", "4", pytest.param("9" * 5000, id="many digits")])
def test_a_number_of_shards_that_someone_writes_into_a_lease_takes_no_job_from_anyone(run: Run, number: str) -> None:
    async def work() -> None:
        fleet = Fleet()
        for replica in "ab":
            fleet.start(replica, 2)
        await fleet.settle()
        for _ in range(8):
            lease = fleet.server.leases["op"]
            fleet.server.store({**lease, "metadata": {**lease["metadata"], "annotations": {SHARDS_ANNOTATION: number}}})
            await fleet.run(LEASE + fleet.chance.uniform(0, LEASE))
        assert fleet.longest == 0

    run(work())


def test_clocks_that_jump_decide_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        fleet = Fleet()
        monkeypatch.setattr(module, "_now", lambda: f"{fleet.chance.randint(1970, 2100)}-01-01T00:00:00.{id(fleet)}Z")
        for name in "ab":
            fleet.start(name, 4)
        await fleet.settle()
        await fleet.run(20)
        assert fleet.longest < 1
        assert fleet.shares() == [2, 2]

    run(work())


def test_a_replica_that_is_cut_off_stops_in_time_and_comes_back(run: Run) -> None:
    async def work() -> None:
        fleet = Fleet()
        for name in "ab":
            fleet.start(name, 4)
        await fleet.settle()
        fleet.replicas["a"].client.cut_off = True
        await fleet.run(20)
        assert fleet.shares() == [0, 4]
        assert fleet.longest < LEASE + 0.6
        assert not fleet.replicas["a"].leases.observed_recently
        fleet.replicas["a"].client.cut_off = False
        await fleet.run(20)
        assert fleet.shares() == [2, 2]

    run(work())


def test_a_lease_is_released_however_many_ask_for_it_meanwhile(run: Run) -> None:
    """Each of them changes it, and so makes a release fail that is under way."""

    async def ask(fleet: Fleet) -> None:
        for number in range(8):
            await asyncio.sleep(0.015)
            for lease in list(fleet.server.leases.values()):
                metadata = lease["metadata"]
                annotations = {**metadata["annotations"], WANTED_ANNOTATION: f"r{number}"}
                fleet.server.store({**lease, "metadata": {**metadata, "annotations": annotations}})

    async def work() -> None:
        fleet = Fleet()
        fleet.start("a", 4)
        await fleet.settle()
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(fleet))
            group.create_task(fleet.end("a"))
        assert {lease["spec"]["holderIdentity"] for lease in fleet.server.leases.values()} == {""}

    run(work())


def test_a_shard_is_released_after_what_is_under_way(run: Run) -> None:
    async def work() -> None:
        fleet = Fleet()
        first = fleet.start("a", 2)
        await fleet.settle()
        busy = [True]
        first.leases._busy = lambda _: busy[0]
        fleet.start("b", 2)
        await fleet.run(5)
        assert len(first.leases.led) == 2
        assert sum(first.leases.leads(job) for job in fleet.without) < len(fleet.without), "nothing new is begun"
        busy.clear()
        busy.append(False)
        await fleet.run(3)
        assert fleet.shares() == [1, 1]

    run(work())


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_no_job_has_two_leaders(run: Run, seed: int) -> None:
    async def work() -> None:
        fleet = Fleet(seed)
        chance, started = fleet.chance, 0
        for _ in range(40):
            names = list(fleet.replicas)
            what = chance.choice(("start", "stop", "kill", "cut", "slow", "edit", "delete", "wait"))
            if what == "start" and len(names) < 5:
                started += 1
                fleet.start(f"r{started}", chance.choice((1, 4, 4, 4, 8)))
            elif what in ("stop", "kill") and names:
                await fleet.end(chance.choice(names), kill=what == "kill")
            elif what == "cut" and names:
                client = fleet.replicas[chance.choice(names)].client
                client.cut_off = not client.cut_off
            elif what == "slow" and names:
                client = fleet.replicas[chance.choice(names)].client
                client.slow, client.lost = chance.choice(((0.02, 0.0), (0.3, 0.1), (1.5, 0.3)))
            elif what == "edit" and fleet.server.leases:
                name = chance.choice(list(fleet.server.leases))
                fleet.server.edit(name, holderIdentity=chance.choice(["", "mallory", *names]))
            elif what == "delete" and fleet.server.leases:
                del fleet.server.leases[chance.choice(list(fleet.server.leases))]
            await fleet.run(chance.uniform(0, 4))
        for replica in fleet.replicas.values():
            replica.client.cut_off, replica.client.slow, replica.client.lost = False, 0.02, 0.0
        fleet.start("last", 4)
        await fleet.settle(40)

    run(work())


async def test_a_request_without_a_response_leaves_time_for_another(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    replica = fleet.start("a", 1)
    fleet.server.store({"metadata": {"name": "op"}, "spec": {"leaseDurationSeconds": 1}})
    while not replica.leases.led:
        await replica.client.request("GET", "/leases")
    original, silent = replica.client.request, [True]

    async def request(method: str, path: str, *, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if method == "PUT" and silent:
            silent.clear()
            await asyncio.Event().wait()
        return await original(method, path, body=body)

    replica.client.request = request  # type: ignore[method-assign]
    await asyncio.sleep(TERMS.renew_deadline + 0.4)
    assert replica.leases.led
    assert "Cannot renew the Lease of shard 0 (system/op): no response within 0.9 s" in caplog.text
    await fleet.end("a")
