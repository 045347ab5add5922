"""One agent without worker processes: the product's MemberLoop and RendezvousCore, run by the caller of `step`."""

from __future__ import annotations

import collections
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.contract import Keys, MemberValue, Neighbour, SecretValue
from elasticjob_runtime.etcd.interface import Store, StoreError, Unavailable
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership import View
from elasticjob_runtime.membership.actions import Action, Exit, MoveWorkers, StartWorkers, StopWorkers, StoreAction
from elasticjob_runtime.membership.silence import RESTART
from elasticjob_runtime.membership.view import (
    Member,
    MemberSettings,
    Probe,
    Role,
    StoreView,
    Workers,
    WorkersState,
)
from elasticjob_runtime.rendezvous.core import Callbacks, RendezvousCore
from elasticjob_runtime.rendezvous.member import NEVER, DecisionCache, LocalState, MemberLoop
from elasticjob_runtime.rendezvous.peer_server import PeerServer
from elasticjob_runtime.rendezvous.peers import probe_in_background
from elasticjob_runtime.rendezvous.plan_writer import PlanOutdatedError

LEASE_TTL = 180.0


class NoHeartbeats:
    """In place of heartbeats: their cost per agent is constant, and here all of it would fall on one machine."""

    silent_after = RESTART.heartbeat

    def silent(self, _now: float) -> frozenset[str]:
        return frozenset()

    def silent_since(self, _now: float) -> float | None:
        return None

    def peer_round(self) -> tuple[int, float]:
        return 0, 0.0

    def follow(self, neighbours: Sequence[Neighbour], now: float) -> None:
        pass


class BenchMember:
    """Only `post` is thread-safe; one thread at a time calls the other methods (crowd.py)."""

    def __init__(
        self,
        name: str,
        store: Store,
        keys: Keys,
        total: int,
        peer_loop: EventLoop,
        wake: Callable[[BenchMember], None],
        ranked: Callable[[int], None],
    ) -> None:
        """`peer_loop`: answers probes, on a thread of its own."""
        self.name = name
        self.gone = False
        self.planner = False
        """Whether it has ever been the planner, which reads all members."""
        self.wake_at: float | None = None
        """Monotonic time at which to call `step` even if nothing was posted."""
        self._wake = wake
        self._ranked = ranked
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        incarnation = secrets.token_hex(6)
        settings = MemberSettings(
            me=name, incarnation=incarnation, nproc=1, min=1, max=total, max_restarts=0, start_grace=30.0
        )
        self._peer_loop = peer_loop
        self._secret: SecretValue | None = None
        self.peers = PeerServer(incarnation, peer_loop, lambda connection, _session: connection.close())
        value = MemberValue(
            address="127.0.0.1",
            ports=[1, 2, 3, 4],
            nproc=1,
            incarnation=incarnation,
            peer_port=self.peers.port,
        )
        callbacks = Callbacks(
            on_view=self._observe,
            on_done=self._done,
            on_trouble=lambda _error: None,
            on_secret=self._use_secret,
            post=self.post,
        )
        self._core = RendezvousCore(store, keys, name, value, callbacks, lease_ttl=LEASE_TTL)
        self._workers = Workers()
        self._decisions = DecisionCache()
        self._loop = MemberLoop(settings, self, self, NoHeartbeats())

    def post(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        self._wake(self)

    def leave(self) -> None:
        """Revokes its lease, as an agent does that ends."""
        self.gone = True
        self._core.leave()

    def step(self) -> None:
        """Does all pending work, as the agent's two threads would."""
        while self._inbox:
            self._inbox.popleft()()
        if self.gone:
            return
        if self._core.due is not None and time.monotonic() >= self._core.due:
            self._core.tick()
        self._core.flush()
        until = None
        while until is None:
            now = time.monotonic()
            action = self._loop.decide(now)
            if isinstance(action, Exit):
                raise RuntimeError(f"{self.name} exited: {action.reason}")
            until = self._loop.execute(action, now)
        due = min(until, NEVER if self._core.due is None else self._core.due)
        self.wake_at = None if due == NEVER else due

    # -- MemberOwner

    def state(self) -> LocalState:
        return LocalState(workers=self._workers)

    def decide(self, view: View, now: float) -> Action:
        return self._decisions.decide(view, now)

    def start_workers(self, action: StartWorkers, now: float) -> None:
        self._workers = Workers(state=WorkersState.RUNNING, round=action.plan.round, changed_at=now, plan=action.plan)
        self._ranked(action.plan.round)

    def move_workers(self, action: MoveWorkers, now: float) -> None:
        """Never decided: these workers do not say that they can continue in place."""
        raise NotImplementedError

    def stop_workers(self, _action: StopWorkers, now: float) -> None:
        self._workers = Workers(round=self._workers.round, changed_at=now, plan=self._workers.plan)

    # -- MemberIO

    @property
    def lease_expires_at(self) -> float | None:
        return self._core.lease_expires_at

    def submit(self, action: StoreAction) -> None:
        self.post(lambda: self._core.execute(action))

    def probe(
        self, members: Sequence[Member], timeout: float, on_result: Callable[[Mapping[str, Probe]], None]
    ) -> None:
        assert self._secret is not None  # this member has registered
        probe_in_background(members, self._secret, lambda found: self.post(lambda: on_result(found)), timeout)

    def probe_outside(self, on_result: Callable[[bool], None]) -> None:
        """Never needed: the benchmark's etcd is always reachable."""

    # -- the store's callbacks

    def _use_secret(self, secret: SecretValue) -> None:
        self._secret = secret
        self._peer_loop.call_soon(lambda: self.peers.open(secret))

    def _observe(self, view: StoreView) -> None:
        self._loop.observe(view)
        self.planner = self.planner or view.role is Role.PLANNER

    def _done(self, action: StoreAction, error: StoreError | None) -> None:
        self._loop.done(action, error)
        if error is not None and not isinstance(error, Unavailable | PlanOutdatedError):
            raise RuntimeError(f"{self.name}: {type(action).__name__}: {error}")
