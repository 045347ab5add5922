"""A store that fails on demand, and drivers for a member's session with it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from elasticjob_runtime.contract import Keys, MemberValue, SecretValue, Value
from elasticjob_runtime.etcd.interface import KeyRange, StoreError, TxnResult, Unavailable
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.actions import Register, StoreAction, Subscribe
from elasticjob_runtime.membership.view import Role, StoreView
from elasticjob_runtime.rendezvous.core import Callbacks, RendezvousCore
from elasticjob_runtime.rendezvous.session import RendezvousThread

from hack.embedded_etcd.memory import MemoryStore
from hack.embedded_etcd.memory_state import Revoke, StateOperation
from hack.support import eventually
from tests.unit.runtime.membership.builders import make_member, make_plan

KEYS = Keys("/p", "run")
T = TypeVar("T", bound=Value)


class FlakyStore(MemoryStore):
    """Fails on demand, and can drop what its watches deliver."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[StoreError] = []
        self.lost_answers = 0
        """So many transactions succeed, but their callers do not learn that."""
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
        result = super().txn(*arguments, **settings)
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unavailable("the response was lost")
        return result

    def watch(self, ranges: Sequence[KeyRange], start_revision: int, callback: Callable[..., None]) -> Any:
        self.watching.append(callback)
        self.watching_from.append(start_revision)
        return super().watch(ranges, start_revision, lambda update: None if self.mute else callback(update))


class CoreDriver:
    """Drives a RendezvousCore step by step, on a clock of its own."""

    def __init__(self, store: FlakyStore, me: str = "a", incarnation: str = "1", nproc: int = 1) -> None:
        self.store = store
        self.now = 1000.0
        self.views: list[StoreView] = []
        self.done: list[tuple[StoreAction, StoreError | None]] = []
        self.trouble: list[StoreError | None] = []
        self.secrets: list[SecretValue] = []
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
                on_secret=self.secrets.append,
                post=self.inbox.put,
            ),
            lease_ttl=30.0,
            clock=lambda: self.now,
        )

    def run(self, action: StoreAction) -> StoreError | None:
        """Executes an action until it completes, and returns its error."""
        count = len(self.done)
        self.core.execute(action)
        self.run_until(lambda: len(self.done) > count)
        return self.done[-1][1]

    def run_until(self, enough: Callable[[], object]) -> None:
        def step() -> object:
            while not self.inbox.empty():
                self.inbox.get()()
            self.core.flush()
            return enough()

        eventually(step, 10.0, interval=0.005, what=f"done {self.done}, trouble {self.trouble}")

    @property
    def view(self) -> StoreView:
        return self.views[-1]

    def tick_when_due(self) -> None:
        assert self.core.due is not None
        self.now = self.core.due
        self.core.tick()

    def lose_lease(self) -> None:
        own = self.store.get(self.core._registration._key)
        assert own is not None
        self.store.apply(Revoke(own.lease))

    def join(self, role: Role = Role.PLANNER) -> None:
        assert self.run(Register(reason="r")) is None
        assert self.run(Subscribe(role=role, reason="r")) is None


def value_in(store: MemoryStore, key: str, kind: type[T]) -> T:
    kv = store.get(key)
    assert kv is not None, key
    return kind.from_json(kv.value)


def put_plan(store: FlakyStore, names: str = "ab", round_number: int = 1) -> None:
    plan = make_plan(names, round_number=round_number)
    assert plan.ranks is not None
    for name, rank in plan.ranks.items():
        store.put(KEYS.rank(plan.value.attempt, name), rank.to_json())
    store.put(KEYS.plan, plan.value.to_json())


class Loop(EventLoop):
    """An agent's loop with a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 1000.0

    def now(self) -> float:
        return self.at


class Session:
    """A running rendezvous thread, and what it has called back."""

    def __init__(self, store: MemoryStore) -> None:
        self.views: list[StoreView] = []
        self.done: list[tuple[StoreAction, StoreError | None]] = []
        member: MemberValue = make_member("a").value
        self.rendezvous = RendezvousThread(
            store,
            KEYS,
            "a",
            member,
            Callbacks(
                on_view=self.views.append,
                on_done=lambda action, error: self.done.append((action, error)),
                on_trouble=lambda _: None,
            ),
            lease_ttl=30.0,
        )
        self.rendezvous.start()
