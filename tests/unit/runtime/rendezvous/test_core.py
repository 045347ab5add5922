"""How RendezvousCore executes actions and follows its watches, step by step."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import HangValue, MemberState, ProgressValue, SpecValue, SuspicionValue
from elasticjob_runtime.etcd.interface import Denied, Full, LeaseLost, Unavailable, WatchFailure
from elasticjob_runtime.membership.actions import PublishFailure, PublishState, PublishSuspicion, Register, Subscribe
from elasticjob_runtime.membership.view import Role
from elasticjob_runtime.rendezvous.core import CATCH_UP, HANG_RETRY

from hack.embedded_etcd.memory_state import Revoke
from tests.unit.runtime.membership.builders import make_failure
from tests.unit.runtime.rendezvous.sessions import KEYS, CoreDriver, FlakyStore, put_plan

pytestmark = pytest.mark.usefixtures("quiet")


def test_an_action_before_any_watch_completes_at_once(store: FlakyStore) -> None:
    core = CoreDriver(store)
    assert core.run(Register(state=MemberState.WARMING, round=0, reason="r")) is None
    core.core.execute(PublishState(state=MemberState.READY, round=0, stores=False, reason="r"))
    assert len(core.done) == 2, "it waits for no watch"
    assert core.view.members["a"].value.state is MemberState.READY


def test_an_action_without_a_lease_fails_and_shows_the_member_unregistered(store: FlakyStore) -> None:
    core = CoreDriver(store)
    core.join()
    own = store.get(KEYS.member("a"))
    assert own is not None
    store.mute = True  # not even the watch reports it
    store.apply(Revoke(own.lease))
    error = core.run(PublishState(state=MemberState.READY, round=1, reason="r"))
    assert isinstance(error, LeaseLost)
    assert not core.view.registered


def test_an_action_completes_only_once_its_effect_is_visible(store: FlakyStore) -> None:
    core = CoreDriver(store)
    core.join()
    store.mute = True
    core.core.execute(PublishState(state=MemberState.LEAVING, round=1, reason="r"))
    count = len(core.done)
    core.core.tick()
    assert len(core.done) == count, "it is not visible yet"
    core.now += CATCH_UP
    assert core.core.due is not None
    assert core.core.due <= core.now
    core.core.tick()
    assert core.done[-1][1] is None
    assert core.view.members["a"].value.state is MemberState.LEAVING


def test_an_action_completes_even_if_revisions_start_over(store: FlakyStore) -> None:
    core = CoreDriver(store)
    core.join()
    store.mute = True
    core.core.execute(PublishState(state=MemberState.LEAVING, round=1, reason="r"))
    core.core._awaited = type(core.core._awaited)(core.done[-1][0], KEYS.member("a"), 10**6, core.now + 1)  # type: ignore[misc]
    count = len(core.done)
    core.now += 2
    core.core.tick()
    assert len(core.done) == count + 1
    assert core.core.due is None, "otherwise it would read forever"


def test_the_ranks_of_a_plan_are_read_again_after_a_failure(store: FlakyStore) -> None:
    core = CoreDriver(store)
    core.join()
    put_plan(store)
    store.errors = [Unavailable("down")]
    core.run_until(lambda: core.trouble and isinstance(core.trouble[-1], Unavailable))
    missed = core.view.plan
    assert core.core.due is not None
    core.now = core.core.due
    core.core.tick()
    plan = core.view.plan
    assert missed is None
    assert plan is not None
    assert plan.rank is not None
    assert plan.rank.group_rank == 0


def test_every_action_completes_whatever_the_store_does(store: FlakyStore) -> None:
    core = CoreDriver(store)
    store.errors = [Unavailable("down")]
    assert isinstance(core.run(Register(reason="r")), Unavailable)
    assert core.run(Register(reason="r")) is None
    store.errors = [Unavailable("down")]
    assert isinstance(core.run(Subscribe(role=Role.PLANNER, reason="r")), Unavailable)
    assert core.run(Subscribe(role=Role.PLANNER, reason="r")) is None
    store.errors = [LeaseLost("gone"), Unavailable("down")]  # the read that follows fails too
    assert isinstance(core.run(PublishState(state=MemberState.READY, round=1, reason="r")), LeaseLost)


def test_a_watch_that_failed_for_good_is_reopened(store: FlakyStore) -> None:
    core = CoreDriver(store)
    core.join()
    store.watching[-1](WatchFailure(Denied("token expired")))
    watches = len(store.watching)
    core.run_until(lambda: isinstance(core.trouble[-1], Denied))
    assert core.core.due is not None
    core.now = core.core.due
    core.core.tick()
    assert len(store.watching) == watches + 1


def test_an_interrupted_watch_is_left_to_reconnect(store: FlakyStore) -> None:
    core = CoreDriver(store)
    core.join()
    watches = len(store.watching)
    store.watching[-1](WatchFailure(Unavailable("down")))
    core.run_until(lambda: isinstance(core.trouble[-1], Unavailable))
    core.now += 10
    core.core.tick()
    assert len(store.watching) == watches


def test_failures_of_a_replaced_watch_are_ignored(store: FlakyStore) -> None:
    core = CoreDriver(store)
    core.join()
    late = store.watching[-1]
    assert core.run(Subscribe(role=Role.FOLLOWER, predecessor="b", reason="r")) is None
    count = len(core.trouble)
    late(WatchFailure(Denied("old")))
    core.inbox.get()()
    assert len(core.trouble) == count


def test_the_planner_sees_published_failures(store: FlakyStore) -> None:
    put_plan(store)
    core = CoreDriver(store)
    core.join()
    assert core.run(PublishFailure(failure=make_failure("a"), reason="r")) is None
    assert [failure.member for failure in core.view.failures] == ["a"]


def test_a_suspicion_can_be_published_and_retracted(store: FlakyStore) -> None:
    put_plan(store)
    core = CoreDriver(store)
    core.join(Role.FOLLOWER)
    suspicion = SuspicionValue(suspect="b", by="a", round=1)
    assert core.run(PublishSuspicion(suspicion=suspicion, reason="r")) is None
    assert [one.value.suspect for one in core.view.suspicions] == ["b"]
    assert core.run(PublishSuspicion(suspicion=suspicion, retract=True, reason="r")) is None
    assert core.view.suspicions == ()


def test_a_failed_progress_write_does_not_affect_the_next(store: FlakyStore) -> None:
    core = CoreDriver(store)
    store.errors = [Unavailable("down")]
    core.core.put_progress(ProgressValue(step=1, round=1))
    core.core.put_progress(ProgressValue(step=2, round=1))
    kv = store.get(KEYS.progress)
    assert kv is not None
    assert ProgressValue.from_json(kv.value).step == 2


def test_a_hang_that_is_over_is_deleted_even_after_an_outage(store: FlakyStore) -> None:
    core = CoreDriver(store)
    core.join()
    hang = HangValue(member="a", round=1, since=1.0, why="rank 1 is in main (train.py:3)", ranks=(1,))
    core.core.put_hang(hang)
    written = store.get(KEYS.hang("a"))
    assert written is not None
    assert HangValue.from_json(written.value) == hang
    store.errors = [Unavailable("down")]
    core.core.put_hang(None)
    assert core.core.due == core.now + HANG_RETRY
    core.now += HANG_RETRY
    core.core.tick()
    assert store.get(KEYS.hang("a")) is None
    assert core.core.due is None


def test_a_watch_event_does_not_report_a_full_store_as_recovered(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At NOSPACE, etcd still serves watches: log and metrics must not flip with every change by another member."""
    core = CoreDriver(store)
    core.join()
    real, full = store.put, Full("database space exceeded")

    def reject(*_: object, **__: object) -> int:
        raise full

    monkeypatch.setattr(store, "put", reject)
    core.core.put_progress(ProgressValue(step=1, round=1))
    core.trouble.clear()
    views = len(core.views)
    real(KEYS.spec, SpecValue(min=1, max=2).to_json())
    core.run_until(lambda: len(core.views) > views)
    assert core.trouble == []
    monkeypatch.setattr(store, "put", real)
    core.core.put_progress(ProgressValue(step=2, round=1))
    assert core.trouble == [None]
