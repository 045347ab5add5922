"""How RendezvousCore executes actions and follows its watches, step by step."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import HangValue, MemberState, ProgressValue, SpecValue, SuspicionValue
from elasticjob_runtime.etcd.interface import (
    Delete,
    Denied,
    Full,
    KeyRange,
    LeaseLost,
    StoreError,
    Unavailable,
    WatchFailure,
)
from elasticjob_runtime.membership.actions import (
    PublishFailure,
    PublishState,
    PublishSuspicion,
    Register,
    RestorePlan,
    Subscribe,
)
from elasticjob_runtime.membership.view import Role
from elasticjob_runtime.rendezvous.core import CATCH_UP, HANG_RETRY

from tests.unit.runtime.membership.builders import make_failure
from tests.unit.runtime.rendezvous.sessions import KEYS, CoreDriver, FlakyStore, put_plan, value_in

pytestmark = pytest.mark.usefixtures("quiet")

READY = PublishState(state=MemberState.READY, round=1, reason="r")
LEAVING = PublishState(state=MemberState.LEAVING, round=1, reason="r")


def test_an_action_before_any_watch_completes_at_once(core: CoreDriver) -> None:
    assert core.run(Register(state=MemberState.WARMING, round=0, reason="r")) is None
    core.core.execute(READY)
    assert len(core.done) == 2, "it waits for no watch"
    assert core.view.members["a"].value.state is MemberState.READY


def test_an_action_without_a_lease_fails_and_shows_the_member_unregistered(
    store: FlakyStore, joined: CoreDriver
) -> None:
    store.mute = True  # not even the watch reports it
    joined.lose_lease()
    assert isinstance(joined.run(READY), LeaseLost)
    assert not joined.view.registered


def test_an_action_completes_only_once_its_effect_is_visible(store: FlakyStore, joined: CoreDriver) -> None:
    store.mute = True
    joined.core.execute(LEAVING)
    count = len(joined.done)
    joined.core.tick()
    assert len(joined.done) == count, "it is not visible yet"
    assert joined.core.due == joined.now + CATCH_UP
    joined.tick_when_due()
    assert joined.done[-1][1] is None
    assert joined.view.members["a"].value.state is MemberState.LEAVING


def test_an_action_completes_even_if_revisions_start_over(store: FlakyStore, joined: CoreDriver) -> None:
    store.mute = True
    joined.core.execute(LEAVING)
    assert joined.core._awaited is not None
    joined.core._awaited = dataclasses.replace(joined.core._awaited, revision=10**6)
    count = len(joined.done)
    joined.tick_when_due()
    assert len(joined.done) == count + 1
    assert joined.core.due is None, "otherwise it would read forever"


def test_the_ranks_of_a_plan_are_read_again_after_a_failure(store: FlakyStore, joined: CoreDriver) -> None:
    put_plan(store)
    store.errors = [Unavailable("down")]
    joined.run_until(lambda: joined.trouble and isinstance(joined.trouble[-1], Unavailable))
    missed = joined.view.plan
    joined.tick_when_due()
    plan = joined.view.plan
    assert missed is None
    assert plan is not None
    assert plan.rank is not None
    assert plan.rank.group_rank == 0


def test_what_the_store_lost_comes_back_as_it_was_last(store: FlakyStore, joined: CoreDriver) -> None:
    """The mark of a plan, which it got after its workers had started, and this member's rank, which only it knows."""
    put_plan(store)
    joined.run_until(lambda: joined.view.plan is not None)
    started = joined.view.plan
    assert started is not None
    store.put(KEYS.plan, dataclasses.replace(started.value, in_place=True).to_json())
    joined.run_until(lambda: joined.view.plan is not None and joined.view.plan.value.in_place)
    store.txn(
        [], [Delete(KeyRange.prefix(KEYS.ranks)), Delete(KeyRange(KEYS.plan)), Delete(KeyRange(KEYS.member("a")))]
    )
    joined.run_until(lambda: joined.view.plan is None)
    assert joined.run(Register(round=1, plan=started, reason="r")) is None
    assert store.get(KEYS.rank(started.value.attempt, "a")) is not None
    assert joined.run(RestorePlan(plan=started, reason="r")) is None
    restored = joined.view.plan
    assert restored is not None
    assert restored.value.in_place
    assert restored.rank == started.rank


def test_a_planner_knows_of_a_restored_plan_what_the_others_know(store: FlakyStore) -> None:
    """It knew more ranks. With these, two members could each wait for the other to plan."""
    core = CoreDriver(store)
    core.join(Role.PLANNER)
    put_plan(store)
    core.run_until(lambda: core.view.plan is not None)
    plan = core.view.plan
    assert plan is not None
    assert plan.ranks is not None
    assert set(plan.ranks) == {"a", "b"}
    store.txn([], [Delete(KeyRange.prefix(KEYS.ranks)), Delete(KeyRange(KEYS.plan))])
    core.run_until(lambda: core.view.plan is None)
    store.put(KEYS.rank(plan.value.attempt, "a"), plan.ranks["a"].to_json())
    store.put(KEYS.plan, plan.value.to_json())
    core.run_until(lambda: core.view.plan is not None)
    assert core.view.plan is not None
    assert set(core.view.plan.ranks or ()) == {"a"}


def test_every_action_completes_whatever_the_store_does(store: FlakyStore, core: CoreDriver) -> None:
    for action in (Register(reason="r"), Subscribe(role=Role.PLANNER, reason="r")):
        store.errors = [Unavailable("down")]
        assert isinstance(core.run(action), Unavailable)
        assert core.run(action) is None
    assert core.secrets, "the next attempt gets one"
    store.errors = [LeaseLost("gone"), Unavailable("down")]  # the read that follows fails too
    assert isinstance(core.run(READY), LeaseLost)


@pytest.mark.parametrize(
    ("error", "reopened"),
    [(Denied("token expired"), True), (Unavailable("down"), False)],
    ids=["failed for good", "interrupted: it reconnects itself"],
)
def test_a_watch_is_reopened_only_if_it_failed_for_good(
    store: FlakyStore, joined: CoreDriver, error: StoreError, reopened: bool
) -> None:
    watches = len(store.watching)
    store.watching[-1](WatchFailure(error))
    joined.run_until(lambda: joined.trouble[-1] is error)
    joined.now += 10
    joined.core.tick()
    assert len(store.watching) == watches + reopened


def test_failures_of_a_replaced_watch_are_ignored(store: FlakyStore, joined: CoreDriver) -> None:
    late = store.watching[-1]
    assert joined.run(Subscribe(role=Role.FOLLOWER, predecessor="b", reason="r")) is None
    count = len(joined.trouble)
    late(WatchFailure(Denied("old")))
    joined.inbox.get()()
    assert len(joined.trouble) == count


def test_the_planner_sees_published_failures(store: FlakyStore, core: CoreDriver) -> None:
    put_plan(store)
    core.join()
    assert core.run(PublishFailure(failure=make_failure("a"), reason="r")) is None
    assert [failure.member for failure in core.view.failures] == ["a"]


def test_a_suspicion_can_be_published_and_retracted(store: FlakyStore, core: CoreDriver) -> None:
    put_plan(store)
    core.join(Role.FOLLOWER)
    suspicion = SuspicionValue(suspect="b", by="a", round=1)
    for retract, suspects in ((False, ["b"]), (True, [])):
        assert core.run(PublishSuspicion(suspicion=suspicion, retract=retract, reason="r")) is None
        assert [one.value.suspect for one in core.view.suspicions] == suspects


def test_a_failed_progress_write_does_not_affect_the_next(store: FlakyStore, core: CoreDriver) -> None:
    store.errors = [Unavailable("down")]
    for step in (1, 2):
        core.core.put_progress(ProgressValue(step=step, round=1))
    assert value_in(store, KEYS.progress, ProgressValue).step == 2


def test_a_hang_that_is_over_is_deleted_even_after_an_outage(store: FlakyStore, joined: CoreDriver) -> None:
    hang = HangValue(member="a", round=1, since=1.0, why="rank 1 is in main (train.py:3)", ranks=(1,))
    joined.core.put_hang(hang)
    assert value_in(store, KEYS.hang("a"), HangValue) == hang
    store.errors = [Unavailable("down")]
    joined.core.put_hang(None)
    assert joined.core.due == joined.now + HANG_RETRY
    joined.tick_when_due()
    assert store.get(KEYS.hang("a")) is None
    assert joined.core.due is None


def test_a_watch_event_does_not_report_a_full_store_as_recovered(
    store: FlakyStore, joined: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At NOSPACE, etcd still serves watches: log and metrics must not flip with every change by another member."""

    def reject(*_: object, **__: object) -> int:
        raise Full("database space exceeded")

    with monkeypatch.context() as patched:
        patched.setattr(store, "put", reject)
        joined.core.put_progress(ProgressValue(step=1, round=1))
    joined.trouble.clear()
    views = len(joined.views)
    store.put(KEYS.spec, SpecValue(min=1, max=2).to_json())
    joined.run_until(lambda: len(joined.views) > views)
    assert joined.trouble == []
    joined.core.put_progress(ProgressValue(step=2, round=1))
    assert joined.trouble == [None]
