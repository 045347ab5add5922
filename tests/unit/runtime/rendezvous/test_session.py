"""The agent's dealings with the store, step by step, and the thread around them."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from elasticjob_runtime.contract import (
    Keys,
    MemberState,
    MemberValue,
    OutcomeState,
    OutcomeValue,
    ProgressValue,
    SpecValue,
    SuspicionValue,
)
from elasticjob_runtime.etcd import MemoryStore
from elasticjob_runtime.etcd.interface import (
    Denied,
    Full,
    KeyRange,
    LeaseLost,
    StoreError,
    TxnResult,
    Unavailable,
    WatchFailure,
)
from elasticjob_runtime.etcd.memory_state import Revoke, StateOperation
from elasticjob_runtime.membership.actions import (
    PublishFailure,
    PublishState,
    PublishSuspicion,
    Register,
    StoreAction,
    Subscribe,
)
from elasticjob_runtime.membership.view import (
    Role,
    StoreView,
)
from elasticjob_runtime.rendezvous.core import CATCH_UP, Callbacks, RendezvousCore
from elasticjob_runtime.rendezvous.registration import RECENT
from elasticjob_runtime.rendezvous.session import Rendezvous

from hack.support import eventually
from tests.unit.runtime.membership.builders import make_failure, make_member, make_plan

KEYS = Keys("/p", "run")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class Flaky(MemoryStore):
    """Fails when told to, and can lose its watches' words."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[StoreError] = []
        self.mute = False
        self.watching: list[Callable[..., None]] = []
        self.watching_from: list[int] = []
        self.revoked: list[int] = []
        self.calls = 0

    def apply(self, operation: StateOperation) -> TxnResult:
        if isinstance(operation, Revoke):
            self.revoked.append(operation.lease)
        return super().apply(operation)

    def txn(self, *arguments: Any, **settings: Any) -> Any:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return super().txn(*arguments, **settings)

    def watch(self, ranges: Sequence[KeyRange], start_revision: int, callback: Callable[..., None]) -> Any:
        self.watching.append(callback)
        self.watching_from.append(start_revision)
        return super().watch(ranges, start_revision, lambda update: None if self.mute else callback(update))


class Core:
    """A core, driven by hand."""

    def __init__(self, store: Flaky, me: str = "a", incarnation: str = "1", nproc: int = 1) -> None:
        self.store = store
        self.now = 1000.0
        self.views: list[StoreView] = []
        self.done: list[tuple[StoreAction, StoreError | None]] = []
        self.trouble: list[StoreError | None] = []
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        member = make_member(me, incarnation=me + incarnation, nproc=nproc).value
        self.core = RendezvousCore(
            store,
            KEYS,
            me,
            member,
            Callbacks(
                on_view=self.views.append,
                on_done=lambda action, error: self.done.append((action, error)),
                on_trouble=self.trouble.append,
                post=self.inbox.put,
            ),
            lease_ttl=30.0,
            clock=lambda: self.now,
        )

    def does(self, action: StoreAction) -> StoreError | None:
        """Executes it to its end; its error."""
        count = len(self.done)
        self.core.execute(action)
        self.hears(lambda: len(self.done) > count)
        return self.done[-1][1]

    def hears(self, enough: Callable[[], object]) -> None:
        def step() -> object:
            while not self.inbox.empty():
                self.inbox.get()()
            self.core.flush()
            return enough()

        eventually(step, 10.0, interval=0.005, what=f"done {self.done}, trouble {self.trouble}")

    @property
    def view(self) -> StoreView:
        return self.views[-1]

    def joins(self, role: Role = Role.PLANNER) -> None:
        assert self.does(Register(reason="r")) is None
        assert self.does(Subscribe(role=role, reason="r")) is None


@pytest.fixture
def store() -> Iterator[Flaky]:
    store = Flaky()
    yield store
    store.close()


def put_plan(store: Flaky, names: str = "ab", round_number: int = 1) -> None:
    plan = make_plan(names, round_number=round_number)
    assert plan.ranks is not None
    for name, rank in plan.ranks.items():
        store.put(KEYS.rank(plan.value.attempt, name), rank.to_json())
    store.put(KEYS.plan, plan.value.to_json())


def test_registering(store: Flaky) -> None:
    core = Core(store)
    assert core.does(Register(state=MemberState.WARMING, round=3, stores=True, reason="r")) is None
    mine = core.view.members["a"].value
    assert core.view.registered
    assert (mine.state, mine.round, mine.stores) == (MemberState.WARMING, 3, True)
    assert core.core.lease_expires_at is not None


def test_what_is_said_before_anything_is_watched_is_not_waited_for(store: Flaky) -> None:
    core = Core(store)
    assert core.does(Register(state=MemberState.WARMING, round=0, reason="r")) is None
    core.core.execute(PublishState(state=MemberState.READY, round=0, stores=False, reason="r"))
    assert len(core.done) == 2, "there and then"
    assert core.view.members["a"].value.state is MemberState.READY


def test_who_registered_before_me(store: Flaky) -> None:
    for name in "abc":
        core = Core(store, name)
        core.joins(Role.FOLLOWER)
    assert core.view.predecessor == "b"
    assert core.view.first_member is None, "each fits the one before, so all fit the first"
    assert set(core.view.members) == {"b", "c"}, "a follower sees as little as it can"


def test_who_does_not_fit_the_one_before_learns_who_was_first(store: Flaky) -> None:
    for name, nproc in (("a", 2), ("b", 1), ("c", 2)):
        core = Core(store, name, nproc=nproc)
        core.joins(Role.FOLLOWER)
        assert core.view.first_member is None or core.view.first_member.incarnation == "a1"
    assert (core.view.predecessor, core.view.first_member is not None) == ("b", True)


def test_the_one_before_me_has_gone(store: Flaky) -> None:
    """It goes after it registered: the watch tells. It has gone long since: who is before it is asked for."""
    for name in "abc":
        core = Core(store, name)
        core.joins(Role.FOLLOWER)
        if name == "b":
            core.core.leave()
    assert core.view.predecessor == "b"
    core.hears(lambda: "b" not in core.view.members)
    core.core.leave()
    for number in range(RECENT + 1):
        store.put(KEYS.progress, str(number))
    late = Core(store, "d")
    late.joins(Role.FOLLOWER)
    assert late.view.predecessor == "a"


def test_an_agent_that_comes_back_under_its_name_is_not_before_itself(store: Flaky) -> None:
    for name, incarnation in (("a", "1"), ("b", "1"), ("b", "2")):
        core = Core(store, name, incarnation)
        core.joins(Role.FOLLOWER)
    assert core.view.predecessor == "a"


def test_what_happened_since_the_one_before_me_registered_is_seen(store: Flaky) -> None:
    """Its key is that of its registration: what happened since comes once, and nothing else comes again."""
    first, second = Core(store, "a"), Core(store, "b")
    first.joins()
    assert second.does(Register(reason="r")) is None
    assert first.does(PublishState(state=MemberState.SUCCEEDED, round=1, reason="r")) is None
    put_plan(store)
    assert second.does(Subscribe(role=Role.FOLLOWER, reason="r")) is None
    second.hears(lambda: second.view.members["a"].value.state is MemberState.SUCCEEDED)
    second.hears(lambda: second.view.plan is not None)
    assert second.view.members["a"].value.state is MemberState.SUCCEEDED
    first.core.leave()
    second.hears(lambda: "a" not in second.view.members)


def test_joining_takes_few_calls(store: Flaky) -> None:
    """A thousand agents that start together wait for each other's calls."""
    Core(store, "a").joins()
    second = Core(store, "b")
    before = store.calls
    second.joins(Role.FOLLOWER)
    assert store.calls - before == 1, "beside the lease and the watch"
    assert second.view.members["a"].value.incarnation == "a1", "as the tail tells it"


def test_who_registered_long_ago_is_read(store: Flaky) -> None:
    """No watch goes back over a day of a running job's changes."""
    Core(store, "a").joins()
    for number in range(RECENT + 1):
        store.put(KEYS.progress, str(number))
    store.watching_from.clear()
    second = Core(store, "b")
    second.joins(Role.FOLLOWER)
    assert (second.view.predecessor, set(second.view.members)) == ("a", {"a", "b"})
    assert store.watching_from == [second.view.members["b"].create_revision + 1]


def test_the_first_has_nobody_before_it(store: Flaky) -> None:
    core = Core(store)
    core.joins(Role.FOLLOWER)
    assert (core.view.predecessor, core.view.first_member) == ("", None)


def test_an_earlier_agent_of_this_name_sees_that_it_was_replaced(store: Flaky) -> None:
    old, new = Core(store, "a", "1"), Core(store, "a", "2")
    old.joins()
    new.joins()
    old.hears(lambda: old.view.replaced_by == "a2")
    assert new.view.registered


def test_a_lost_lease_is_seen_and_mended(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    own = store.get(KEYS.member("a"))
    assert own is not None
    store.apply(Revoke(own.lease))
    core.hears(lambda: not core.view.registered)
    assert core.does(Register(reason="r")) is None
    assert core.view.registered


def test_late_news_of_an_earlier_lease_do_not_end_the_new_one(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    assert core.does(Register(reason="again")) is None
    expires = core.core.lease_expires_at
    core.core._lost(1, "expired")
    core.core.flush()
    assert core.core.lease_expires_at == expires is not None


def test_an_action_without_a_lease_fails_and_the_agent_hears_that_it_is_not_registered(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    own = store.get(KEYS.member("a"))
    assert own is not None
    store.mute = True  # not even the watch tells
    store.apply(Revoke(own.lease))
    error = core.does(PublishState(state=MemberState.READY, round=1, reason="r"))
    assert isinstance(error, LeaseLost)
    assert not core.view.registered


def test_an_action_is_over_only_when_its_effect_is_seen(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    store.mute = True
    core.core.execute(PublishState(state=MemberState.LEAVING, round=1, reason="r"))
    count = len(core.done)
    core.core.tick()
    assert len(core.done) == count, "nobody has seen it yet"
    core.now += CATCH_UP
    assert core.core.due is not None
    assert core.core.due <= core.now
    core.core.tick()
    assert core.done[-1][1] is None
    assert core.view.members["a"].value.state is MemberState.LEAVING


def test_an_action_ends_even_when_revisions_start_over(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    store.mute = True
    core.core.execute(PublishState(state=MemberState.LEAVING, round=1, reason="r"))
    core.core._awaited = type(core.core._awaited)(core.done[-1][0], KEYS.member("a"), 10**6, core.now + 1)  # type: ignore[misc]
    count = len(core.done)
    core.now += 2
    core.core.tick()
    assert len(core.done) == count + 1
    assert core.core.due is None, "or it reads again and again"


def test_a_plan_whose_ranks_cannot_be_read_at_once_is_not_missed(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    put_plan(store)
    store.errors = [Unavailable("away")]
    core.hears(lambda: core.trouble and isinstance(core.trouble[-1], Unavailable))
    missed = core.view.plan
    assert core.core.due is not None
    core.now = core.core.due
    core.core.tick()
    plan = core.view.plan
    assert missed is None
    assert plan is not None
    assert plan.rank is not None
    assert plan.rank.group_rank == 0


def test_every_action_ends_whatever_the_store_does(store: Flaky) -> None:
    core = Core(store)
    store.errors = [Unavailable("away")]
    assert isinstance(core.does(Register(reason="r")), Unavailable)
    assert core.does(Register(reason="r")) is None
    store.errors = [Unavailable("away")]
    assert isinstance(core.does(Subscribe(role=Role.PLANNER, reason="r")), Unavailable)
    assert core.does(Subscribe(role=Role.PLANNER, reason="r")) is None
    store.errors = [LeaseLost("gone"), Unavailable("away")]  # and what it wants to read then cannot be read
    assert isinstance(core.does(PublishState(state=MemberState.READY, round=1, reason="r")), LeaseLost)


def test_a_watch_that_ended_for_good_is_made_anew(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    store.watching[-1](WatchFailure(Denied("token expired")))
    watches = len(store.watching)
    core.hears(lambda: isinstance(core.trouble[-1], Denied))
    assert core.core.due is not None
    core.now = core.core.due
    core.core.tick()
    assert len(store.watching) == watches + 1


def test_a_watch_that_is_only_interrupted_is_left_alone(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    watches = len(store.watching)
    store.watching[-1](WatchFailure(Unavailable("away")))
    core.hears(lambda: isinstance(core.trouble[-1], Unavailable))
    core.now += 10
    core.core.tick()
    assert len(store.watching) == watches


def test_words_of_an_earlier_watch_do_not_count(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    late = store.watching[-1]
    assert core.does(Subscribe(role=Role.FOLLOWER, predecessor="b", reason="r")) is None
    count = len(core.trouble)
    late(WatchFailure(Denied("old")))
    core.inbox.get()()
    assert len(core.trouble) == count


def test_failures_are_seen_by_the_planner(store: Flaky) -> None:
    put_plan(store)
    core = Core(store)
    core.joins()
    assert core.does(PublishFailure(failure=make_failure("a"), reason="r")) is None
    assert [failure.member for failure in core.view.failures] == ["a"]


def test_a_suspicion_is_said_and_taken_back(store: Flaky) -> None:
    put_plan(store)
    core = Core(store)
    core.joins(Role.FOLLOWER)
    said = SuspicionValue(suspect="b", by="a", round=1)
    assert core.does(PublishSuspicion(suspicion=said, reason="r")) is None
    assert [one.value.suspect for one in core.view.suspicions] == ["b"]
    assert core.does(PublishSuspicion(suspicion=said, retract=True, reason="r")) is None
    assert core.view.suspicions == ()


@pytest.mark.parametrize("spec", [False, True])
def test_who_comes_after_the_end_sees_the_outcome_and_does_not_register(store: Flaky, spec: bool) -> None:
    put_plan(store)
    store.put(KEYS.outcome, OutcomeValue(state=OutcomeState.SUCCEEDED, reason="r").to_json())
    if spec:
        store.put(KEYS.spec, SpecValue(min=1, max=1).to_json())
    core = Core(store)
    assert core.does(Register(reason="r")) is None
    assert core.view.outcome is not None
    assert not core.view.registered
    assert store.get(KEYS.member("a")) is None
    assert len(store.revoked) == 1, "its lease is given back"


def test_an_agent_that_lost_its_lease_as_the_job_ended_sees_the_outcome(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    own = store.get(KEYS.member("a"))
    assert own is not None
    store.apply(Revoke(own.lease))
    store.put(KEYS.outcome, OutcomeValue(state=OutcomeState.SUCCEEDED, reason="r").to_json())
    assert core.does(Register(round=1, reason="again")) is None
    assert core.view.outcome is not None


def test_progress_is_best_effort(store: Flaky) -> None:
    core = Core(store)
    store.errors = [Unavailable("away")]
    core.core.put_progress(ProgressValue(step=1, round=1))
    core.core.put_progress(ProgressValue(step=2, round=1))
    kv = store.get(KEYS.progress)
    assert kv is not None
    assert ProgressValue.from_json(kv.value).step == 2


def test_leaving_gives_the_lease_back(store: Flaky) -> None:
    core = Core(store)
    core.joins()
    core.core.leave()
    assert store.get(KEYS.member("a")) is None


# -- the thread


class Shell:
    def __init__(self, store: MemoryStore) -> None:
        self.views: list[StoreView] = []
        self.done: list[tuple[StoreAction, StoreError | None]] = []
        member: MemberValue = make_member("a").value
        self.rendezvous = Rendezvous(
            store,
            KEYS,
            "a",
            member,
            lease_ttl=30.0,
            on_view=self.views.append,
            on_done=lambda action, error: self.done.append((action, error)),
            on_trouble=lambda _: None,
        )
        self.rendezvous.start()


def test_the_thread_executes_watches_and_leaves(store: Flaky) -> None:
    shell = Shell(store)
    shell.rendezvous.submit(Register(reason="r"))
    shell.rendezvous.submit(Subscribe(role=Role.PLANNER, reason="r"))
    eventually(lambda: len(shell.done) == 2, 10.0)
    store.put(KEYS.member("b"), make_member("b").value.to_json())
    eventually(lambda: "b" in shell.views[-1].members, 10.0)
    own = store.get(KEYS.member("a"))
    assert own is not None
    shell.rendezvous.close()
    assert store.revoked == [own.lease], "the lease was not given back"


def test_progress_goes_on_after_any_number_of_reports(store: Flaky) -> None:
    shell = Shell(store)
    for step in range(1, 200):
        shell.rendezvous.publish_progress(ProgressValue(step=step, round=1))

    def last() -> bool:
        kv = store.get(KEYS.progress)
        return kv is not None and ProgressValue.from_json(kv.value).step == 199

    eventually(last, 10.0, what="the last report is written")
    shell.rendezvous.close()


def test_an_error_of_ours_neither_ends_the_thread_nor_leaves_the_agent_waiting(store: Flaky) -> None:
    shell = Shell(store)
    shell.rendezvous.submit("no action at all")  # type: ignore[arg-type]
    eventually(lambda: shell.done, 10.0)
    assert isinstance(shell.done[0][1], StoreError)
    shell.rendezvous.submit(Register(reason="r"))
    eventually(lambda: len(shell.done) == 2, 10.0)
    assert shell.done[1][1] is None
    shell.rendezvous.close()


def test_after_it_was_closed_it_says_nothing() -> None:
    held, release = threading.Event(), threading.Event()

    class Stuck(MemoryStore):
        def lease(self, *arguments: Any) -> Any:
            held.set()
            release.wait(10.0)
            return super().lease(*arguments)

    shell = Shell(Stuck())
    shell.rendezvous.submit(Register(reason="r"))
    assert held.wait(10.0)
    shell.rendezvous.close(timeout=0.01)
    release.set()
    shell.rendezvous._thread.join(10.0)
    assert (shell.views, shell.done) == ([], [])


def test_a_store_that_takes_no_writes_is_not_told_as_back_because_it_brings_news(
    store: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At NOSPACE etcd still serves watches: log and metrics would change their mind with every change that somebody
    else makes."""
    core = Core(store)
    core.joins()
    real, full = store.put, Full("database space exceeded")

    def refuses(*_: object, **__: object) -> int:
        raise full

    monkeypatch.setattr(store, "put", refuses)
    core.core.put_progress(ProgressValue(step=1, round=1))
    core.trouble.clear()
    views = len(core.views)
    real(KEYS.spec, SpecValue(min=1, max=2).to_json())
    core.hears(lambda: len(core.views) > views)
    assert core.trouble == []
    monkeypatch.setattr(store, "put", real)
    core.core.put_progress(ProgressValue(step=2, round=1))
    assert core.trouble == [None]
