"""The local copy of what an agent watches."""

from __future__ import annotations

import logging

import pytest
from elasticjob_runtime.contract import (
    Keys,
    LocationsValue,
    MemberState,
    OutcomeState,
    OutcomeValue,
    RankValue,
    SpecValue,
    SuspicionValue,
    Value,
)
from elasticjob_runtime.etcd.interface import Event, KeyValue, WatchUpdate
from elasticjob_runtime.membership.view import Role, StoreView
from elasticjob_runtime.rendezvous.cache import StoreCache, watched_ranges

from tests.unit.runtime.membership.builders import make_failure, make_member, make_plan

KEYS = Keys("/p", "run")
PLAN = make_plan("ab", round_number=3).value
RANKS = {
    "a": RankValue(group_rank=0, incarnation="a1"),
    "b": RankValue(group_rank=1, incarnation="b1", predecessor="a"),
}


def kv(key: str, value: Value | str, mod: int = 5, create: int = 5) -> KeyValue:
    return KeyValue(key, value if isinstance(value, str) else value.to_json(), create, mod, 1)


def member(name: str, mod: int = 5, create: int = 5, **fields: object) -> KeyValue:
    return kv(KEYS.member(name), make_member(name, **fields).value, mod, create)


def cache_of(*kvs: KeyValue, now: float = 10.0) -> StoreCache:
    cache = StoreCache(KEYS)
    cache.replace(kvs, 9, now)
    return cache


def seen(of: StoreCache, me: str = "a", role: Role = Role.PLANNER, incarnation: str = "a1") -> StoreView:
    return of.view(me=me, incarnation=incarnation, role=role, predecessor="", ranks=RANKS)


def change(key: str, value: Value | None, revision: int, create: int = 5) -> WatchUpdate:
    return WatchUpdate(revision, (Event(key, value.to_json() if value else None, revision, create if value else 0),))


def test_a_replayed_change_is_ignored() -> None:
    """A watch may start before what was read, for the sake of another key: a spec that was set and deleted in between
    stays deleted."""
    cache = StoreCache(KEYS)
    cache.replace([member("a")], 9, 10.0, watched_ranges(KEYS, Role.FOLLOWER, "a", ""))
    cache.add(member("b", mod=6, create=6), 10.0)
    cache.apply(change(KEYS.spec, SpecValue(min=1, max=2), 7), 11.0)
    cache.apply(change(KEYS.member("b"), None, 8), 11.0)
    assert seen(cache).spec is None
    assert set(seen(cache).members) == {"a"}
    cache.apply(change(KEYS.spec, SpecValue(min=1, max=2), 10), 11.0)
    assert seen(cache).spec is not None


def test_a_planner_learns_where_members_are() -> None:
    cache = cache_of(member("a"), kv(KEYS.locations, LocationsValue(locations={"a": "r1/n1"})))
    assert seen(cache).locations == {"a": "r1/n1"}
    cache.apply(change(KEYS.locations, None, 12), 11.0)
    assert seen(cache).locations == {}


def test_a_view_has_everything_about_the_run() -> None:
    view = seen(
        cache_of(
            kv(KEYS.plan, PLAN, mod=7),
            kv(KEYS.spec, SpecValue(min=1, max=2)),
            kv(KEYS.outcome, OutcomeValue(state=OutcomeState.FAILED, reason="r")),
            member("a"),
            kv(KEYS.failure(3, "b"), make_failure("b", round_number=3)),
            kv(KEYS.suspicion(3, "b", "a"), SuspicionValue(suspect="b", by="a", round=3)),
        )
    )
    assert view.registered
    assert view.spec == SpecValue(min=1, max=2)
    assert view.outcome is not None
    assert view.plan is not None
    assert (view.plan.round, view.plan.mod_revision, view.plan.rank, view.last_round) == (3, 7, RANKS["a"], 3)
    assert [failure.member for failure in view.failures] == ["b"]
    assert [one.value.suspect for one in view.suspicions] == ["b"]


def test_an_empty_store_gives_an_empty_view() -> None:
    assert seen(cache_of()) == StoreView(role=Role.PLANNER)


def test_changes_are_applied_to_the_view() -> None:
    of = cache_of(member("a"))
    before = seen(of)
    of.apply(change(KEYS.member("b"), make_member("b").value, 11), 20.0)
    of.apply(change(KEYS.plan, PLAN, 12), 20.0)
    assert set(before.members) == {"a"}, "a view does not change"
    assert (set(seen(of).members), of.plan_revision) == ({"a", "b"}, 12)
    of.apply(change(KEYS.member("b"), None, 13), 21.0)
    of.apply(change(KEYS.plan, None, 14), 21.0)
    assert (set(seen(of).members), seen(of).plan) == ({"a"}, None)
    assert seen(of).last_round == 3, "the last round is remembered"


def test_a_snapshot_replaces_everything_even_at_a_lower_revision() -> None:
    of = cache_of(member("a"), kv(KEYS.plan, PLAN), kv(KEYS.spec, SpecValue(min=1, max=2)))
    of.apply(WatchUpdate(2, snapshot=(member("b", 2, 2),)), 20.0)
    view = seen(of)
    assert (set(view.members), view.plan, view.spec) == ({"b"}, None, None)


def test_a_change_in_one_range_does_not_advance_the_others() -> None:
    of = StoreCache(KEYS)
    of.replace([], 10, 0.0, watched_ranges(KEYS, Role.FOLLOWER, "a", "b"))
    assert of.shows(KEYS.plan, 10)
    assert not of.shows(KEYS.plan, 11)
    assert of.shows(KEYS.progress, 99), "an unwatched key is not waited for"
    of.apply(change(KEYS.member("b"), make_member("b").value, 12), 20.0)
    assert of.shows(KEYS.member("b"), 12)
    assert not of.shows(KEYS.member("a"), 12)
    of.apply(change(KEYS.outcome, None, 13), 20.0)
    assert of.shows(KEYS.plan, 13), "outcome and plan are one range"


def test_an_older_change_does_not_undo_a_later_read() -> None:
    of = cache_of()
    of.add(kv(KEYS.member("b"), make_member("b", state=MemberState.LEAVING).value, mod=12), 20.0)
    of.apply(change(KEYS.member("b"), make_member("b").value, 11), 21.0)
    assert seen(of).members["b"].value.state is MemberState.LEAVING


ONCE = [KEYS.plan, KEYS.outcome, KEYS.spec, KEYS.suspicion(1, "z", "y")]


@pytest.mark.parametrize(
    ("role", "predecessor", "ranges", "watched"),
    [
        (None, "", 2, [KEYS.member("b")]),
        (Role.FOLLOWER, "a", 3, [KEYS.member("a"), KEYS.member("b")]),
        (
            Role.PLANNER,
            "",
            1,
            [KEYS.member("a"), KEYS.member("b"), KEYS.member("z"), KEYS.failure(1, "z"), KEYS.locations],
        ),
    ],
    ids=["not registered", "follower", "planner"],
)
def test_each_role_watches_only_what_it_needs(
    role: Role | None, predecessor: str, ranges: int, watched: list[str]
) -> None:
    """Neither ranks, of which there are as many as members, nor progress, which is written every second."""
    found = watched_ranges(KEYS, role, "b", predecessor)
    assert len(found) == ranges
    keys = [*ONCE, *(KEYS.member(name) for name in "abz"), KEYS.failure(1, "z"), KEYS.locations]
    keys += [KEYS.progress, KEYS.rank("1", "b"), KEYS.last_joined]
    assert [key for key in keys if any(key in one for one in found)] == [*ONCE, *watched]


def test_seen_at_is_when_the_member_registered() -> None:
    of = cache_of(member("a"), now=10.0)
    of.replace([member("a")], 10, 15.0)
    assert seen(of).members["a"].seen_at == 10.0, "reading the same again keeps it"
    of.apply(change(KEYS.member("a"), make_member("a", state=MemberState.LEAVING).value, 11), 20.0)
    assert seen(of).members["a"].seen_at == 10.0
    of.apply(change(KEYS.member("a"), None, 12), 30.0)
    of.apply(change(KEYS.member("a"), make_member("a").value, 13, create=13), 31.0)
    assert seen(of).members["a"].seen_at == 31.0


def test_another_agent_of_this_name_is_reported() -> None:
    view = seen(cache_of(member("a", incarnation="a2")))
    assert (view.registered, view.replaced_by) == (False, "a2")


def test_a_rank_of_an_earlier_incarnation_is_ignored() -> None:
    view = seen(cache_of(member("a", incarnation="a2"), kv(KEYS.plan, PLAN)), incarnation="a2")
    assert view.plan is not None
    assert view.plan.rank is None


def test_only_the_planner_sees_all_ranks() -> None:
    of = cache_of(kv(KEYS.plan, PLAN))
    planner, follower = seen(of).plan, seen(of, role=Role.FOLLOWER).plan
    assert planner is not None
    assert follower is not None
    assert (planner.ranks, follower.ranks, follower.rank) == (RANKS, None, RANKS["a"])


def test_failures_of_other_rounds_are_ignored() -> None:
    of = cache_of(kv(KEYS.plan, PLAN), kv(KEYS.failure(2, "b"), make_failure("b", round_number=2)))
    assert seen(of).failures == ()


def test_failures_are_in_the_order_they_were_written() -> None:
    of = cache_of(kv(KEYS.plan, PLAN), now=10.0)
    of.apply(change(KEYS.failure(3, "b"), make_failure("b", round_number=3), 20), 20.0)
    of.apply(change(KEYS.failure(3, "a"), make_failure("a", round_number=3), 21), 21.0)
    view = seen(of)
    assert [failure.member for failure in view.failures] == ["b", "a"]
    assert view.failed_at == 20.0


def test_a_retracted_suspicion_disappears() -> None:
    of = cache_of(kv(KEYS.plan, PLAN))
    key = KEYS.suspicion(3, "b", "a")
    of.apply(change(key, SuspicionValue(suspect="b", by="a", round=3), 20), 20.0)
    assert [one.seen_at for one in seen(of).suspicions] == [20.0]
    of.apply(change(key, None, 21), 21.0)
    assert seen(of).suspicions == ()


@pytest.mark.parametrize(
    "bad",
    [kv(KEYS.spec, "{"), kv(KEYS.member("x"), '{"state": "dancing"}'), kv(KEYS.plan, "[]"), kv(KEYS.outcome, "{}"),
     kv(KEYS.failure(3, "x"), "3"), kv(KEYS.suspicion(3, "x", "y"), "null")],
    ids=["spec", "member", "plan", "outcome", "failure", "suspicion"],
)  # fmt: skip
def test_an_unreadable_value_is_ignored_with_one_warning(bad: KeyValue, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("elasticjob_runtime").propagate = True
    of = cache_of(member("a"), bad)
    of.replace([member("a"), bad], 10, 11.0)
    view = seen(of)
    assert set(view.members) == {"a"}
    assert (view.spec, view.plan, view.outcome, view.failures) == (None, None, None, ())
    assert [bad.key in record.getMessage() for record in caplog.records] == [True]
