from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

from elasticjob_operator.policies.shards import (
    LONGEST_LEASE,
    SHARDS_ANNOTATION,
    WANTED_ANNOTATION,
    Decision,
    ShardLease,
    decide,
    lease_name,
    observe,
    shard_of,
    shard_of_lease,
    takeover_order,
)

from tests.unit.operator.tables import table

FREE = ShardLease(duration=1, since=0, count=2)


def of(holder: str, *, since: float = 98, count: int = 2, wanted: str = "") -> ShardLease:
    return ShardLease(holder=holder, duration=4, since=since, count=count, wanted_by=wanted)


def decided(seen: dict[int, ShardLease], held: tuple[int, ...] = (), **given: Any) -> Decision:
    fields = {"me": "me", "count": 2, "acting": held, "now": 100.0, "turn": 1.0, **given}
    return decide(seen, held=held, **fields)


@table(
    "seen, held, acquire",
    {
        "all that are free": ({0: FREE, 1: FREE}, (), (0, 1)),
        "first the one that says how many there are": ({0: dataclasses.replace(FREE, count=4), 1: FREE}, (), (0,)),
        "then the others": ({0: of("me"), 1: FREE}, (0,), (1,)),
        "also if another replica leads the first shard": ({0: of("b"), 1: FREE}, (), (1,)),
        "none that is held": ({0: of("b"), 1: of("b")}, (), ()),
        "one that was not renewed for its duration": ({0: of("b"), 1: of("c", since=95.9)}, (), (1,)),
        "not before": ({0: of("b"), 1: of("c", since=96.1)}, (), ()),
        "not one that it lost, before it expires": ({0: of("b"), 1: of("me", since=98)}, (), ()),
        "not one whose holder someone has removed": ({0: of("b"), 1: of("", since=98)}, (), ()),
        "not one released to another": ({0: of("b"), 1: dataclasses.replace(FREE, since=99.5, wanted_by="c")}, (), ()),
        "unless that one is late": ({0: of("b"), 1: dataclasses.replace(FREE, since=98.5, wanted_by="c")}, (), (1,)),
        "none that it does not have": ({0: of("b"), 1: FREE, 2: FREE}, (), (1,)),
    },
)
def test_what_is_acquired(seen: dict[int, ShardLease], held: tuple[int, ...], acquire: tuple[int, ...]) -> None:
    assert decided(seen, held).acquire == acquire


@table(
    "holders, asks_for",
    {
        "it has none": ("bbb", 2),
        "one less is as even as it gets": ("bmb", None),
        "the one with the most": ("bcc", 2),
        "more replicas than shards": ("bcd", None),
    },
)
def test_a_replica_with_two_shards_less_asks_for_one(holders: str, asks_for: int | None) -> None:
    seen = {shard: of("me" if holder == "m" else holder, count=3) for shard, holder in enumerate(holders)}
    held = tuple(shard for shard, holder in enumerate(holders) if holder == "m")
    assert decided(seen, held, count=3).ask_for == asks_for


def test_a_replica_asks_for_one_shard_at_a_time() -> None:
    seen = {shard: of("b", count=8, wanted="me" if shard == 5 else "") for shard in range(8)}
    assert decided(seen, count=8).ask_for is None
    assert decided({**seen, 5: of("b", count=8, wanted="c")}, count=8).ask_for == 7


def test_a_shard_that_is_asked_for_is_released_where_that_makes_it_more_even() -> None:
    seen = {shard: of("me", count=3, wanted="b" if shard else "") for shard in range(3)}
    assert decided(seen, (0, 1, 2), count=3).release == (1,)
    assert not decided({**seen, 2: of("b", count=3)}, (0, 1), count=3).release


@table(
    "other, held, acting, release",
    {
        "it has none": ({0: of("b", count=4)}, (), (), ()),
        "the first shard decides": ({0: of("b", count=4)}, (1,), (1,), (1,)),
        "it acts already": ({3: of("b", count=4)}, (0, 1), (0, 1), ()),
        "it does not act yet, and waits with the first shard": ({3: of("b", count=4)}, (0, 1), (), (1,)),
    },
)
def test_while_another_replica_has_another_number_of_shards(
    other: dict[int, ShardLease], held: tuple[int, ...], acting: tuple[int, ...], release: tuple[int, ...]
) -> None:
    seen = {0: FREE, 1: FREE, **{shard: of("me") for shard in held}, **other}
    found = decided(seen, held, acting=acting)
    assert (found.acquire, found.release, found.may_act) == ((), release, False)
    assert "b leads shard" in found.reason


def test_a_replica_that_ended_with_another_number_of_shards_is_not_waited_for() -> None:
    assert decided({0: of("b", count=4, since=90), 1: FREE}).acquire == (0,)


def body(shards: str = "2", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": {SHARDS_ANNOTATION: shards, WANTED_ANNOTATION: "w"}}, "spec": spec}


def seen_at(now: float, before: dict[int, ShardLease] | None, **spec: Any) -> ShardLease:
    return observe({1: body(**spec)} if spec else {}, before, me="me", terms=4, count=2, now=now)[1]


def test_the_duration_begins_anew_with_each_renewal_only() -> None:
    first = seen_at(10, {}, holderIdentity="b", leaseDurationSeconds=4, renewTime="x")
    assert (first.since, first.free_at, first.count, first.wanted_by) == (10, 14, 2, "w")
    known = {1: dataclasses.replace(first, wanted_by="")}
    assert seen_at(11, known, holderIdentity="b", leaseDurationSeconds=4, renewTime="x").since == 10, "asked for"
    assert seen_at(11, known, holderIdentity="b", leaseDurationSeconds=4, renewTime="a").since == 11, (
        "a clock went back"
    )


def test_the_number_of_shards_is_what_its_holder_wrote_when_it_acquired_the_lease() -> None:
    spec = {"holderIdentity": "b", "leaseDurationSeconds": 4}
    first = seen_at(10, {}, **spec, renewTime="x", leaseTransitions=1)
    edited = seen_at(11, {1: first}, shards="4", **spec, renewTime="x", leaseTransitions=1)
    assert (edited.count, edited.since) == (2, 10), "nor does an edit prolong a Lease"
    assert seen_at(12, {1: edited}, shards="4", **spec, renewTime="y", leaseTransitions=1).count == 2, "and a renewal"
    assert seen_at(13, {1: edited}, shards="4", **spec, renewTime="y", leaseTransitions=2).count == 4, "another process"


def test_a_lease_that_was_deleted_may_still_have_a_leader() -> None:
    missing = seen_at(10, {})
    assert missing.free_at == 14
    assert seen_at(12, {1: missing}).free_at == 14


def test_a_lease_is_never_respected_for_long_without_a_renewal() -> None:
    assert seen_at(10, {}, holderIdentity="b", leaseDurationSeconds=10**6).free_at == 10 + LONGEST_LEASE


def test_a_restarted_container_goes_on_at_once() -> None:
    assert seen_at(10, None, holderIdentity="me", leaseDurationSeconds=4).free_at < 10
    assert seen_at(10, {}, holderIdentity="me", leaseDurationSeconds=4).free_at == 14, "someone has written our name"


def test_each_shard_gets_its_part_of_the_jobs_of_one_namespace() -> None:
    counts = collections.Counter(shard_of(("team", f"train-{number}"), 8) for number in range(4000))
    assert sorted(counts) == list(range(8))
    assert max(counts.values()) < 600


def test_the_shard_of_a_job_is_the_same_in_every_release() -> None:
    assert [shard_of(("team", name), 8) for name in ("a", "b", "c")] == [6, 5, 0]
    assert shard_of(("team", "a"), 1) == 0


def test_names_of_leases() -> None:
    assert [shard_of_lease("op", lease_name("op", shard)) for shard in (0, 1, 12)] == [0, 1, 12]
    assert [shard_of_lease("op", name) for name in ("op-shard-x", "op-shard-0", "op2", "other", "op-shard-")] == [
        None
    ] * 5


def test_a_new_leader_looks_first_at_what_happened_last() -> None:
    rest = -math.inf
    changed_at = {("ml", "rest"): rest, ("ml", "old"): 87.9, ("ml", "first"): 90.0, ("ml", "last"): 99.0}
    first, others = takeover_order(changed_at, now=100.0, lease_seconds=4.0)
    assert [name for _, name in first] == ["last", "first"]
    assert [name for _, name in others] == ["old", "rest"]
