"""An agent of the simulation: the product's MemberLoop and RendezvousCore; threads, workers and peers are simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import Keys, MemberValue
from elasticjob_runtime.etcd.interface import Operation, StoreError
from elasticjob_runtime.membership import View
from elasticjob_runtime.membership.actions import Action, Exit, MoveWorkers, StartWorkers, StopWorkers, StoreAction
from elasticjob_runtime.membership.view import Member, MemberSettings, Probe, StoreView
from elasticjob_runtime.rendezvous.core import Callbacks, RendezvousCore
from elasticjob_runtime.rendezvous.member import NEVER, DecisionCache, LocalState, MemberLoop
from elasticjob_runtime.rendezvous.outside_hosts import TIMEOUT as OUTSIDE_TIMEOUT
from elasticjob_runtime.rendezvous.peer_protocol import Purpose

from tests.unit.runtime.simulation.clock import Actor
from tests.unit.runtime.simulation.connection import Connection
from tests.unit.runtime.simulation.heartbeats import Heartbeats
from tests.unit.runtime.simulation.invariants import Broken
from tests.unit.runtime.simulation.peers import Link, Port, connect
from tests.unit.runtime.simulation.session_workers import SessionWorkerGroup
from tests.unit.runtime.simulation.workers import WorkerGroup

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.world import World

KEYS = Keys("/sim", "run")
LEASE_TTL = 5.0
MOST_ACTIONS = 100
"""Without a wait."""
BATCH = 2
"""Members in one transaction: small, so that plans of few agents take several."""


class Agent:
    """One incarnation."""

    def __init__(self, world: World, settings: MemberSettings, *, warm_after: float) -> None:
        self.world = world
        self.clock = world.clock
        self.name = settings.me
        self.dead = False
        self.frozen = False
        self.suspensions = 0
        self.no_stores = False
        """The process that hosts its worker stores has died, and is started again."""
        self.cut_off = False
        """It cannot reach the store."""
        self.lossy = False
        """Responses of the store may get lost."""
        self.wall_offset = 0.0
        self.stood_still = 0.0
        """s for which its monotonic clock has stopped, because its machine was suspended."""
        self.no_descriptors = False
        """It can open no connections of its own."""
        self.out_since: float | None = None
        """When it was cut off from the store, by the world's clock; None if it is not, or while the store is down."""
        self.alone_since: float | None = None
        """The same, or since when the store is down."""
        self.awake_since = 0.0
        """When it last resumed after a freeze."""
        self.crashes_until = 0.0
        """Until when its worker processes crash as they start, by the world's clock."""
        self.start_seconds = 0.0
        """How much longer its worker processes take to start."""
        self.exit: Exit | None = None
        self.leaving_since: float | None = None
        self.saves_for_all = False
        """Its worker processes were told to save, because all members leave."""
        self.warm = False
        self.workers: WorkerGroup | SessionWorkerGroup = (
            SessionWorkerGroup(self, settings.nproc) if world.walk.session else WorkerGroup(self)
        )
        self._tick_at: float | None = None
        self.port = Port(self)
        self.heartbeats = Heartbeats(self)
        self._decisions = DecisionCache()
        self.loop = MemberLoop(settings, self, self, self.heartbeats, clock=lambda: self.now)
        self._thread = Actor(self.clock, lambda: self.stopped, self._run)
        self._core_thread = Actor(self.clock, lambda: self.stopped, self._after_core)
        member = MemberValue(
            address="10.0.0.1",
            ports=[1, 2, 3, 4],
            nproc=settings.nproc,
            replica_size=settings.replica_size,
            replica_ports=[2 * len(world.agents) + port for port in (10, 11)],
            incarnation=settings.incarnation,
            peer_port=7,
        )
        self._core = RendezvousCore(
            Connection(world.server, self, self._wrote),
            KEYS,
            self.name,
            member,
            Callbacks(
                on_view=lambda view: self._thread.post(lambda: self.loop.observe(view)),
                on_done=lambda action, error: self._thread.post(lambda: self._done(action, error)),
                on_trouble=lambda error: self._thread.post(lambda: self.loop.executor.report_trouble(error)),
                on_secret=lambda secret: self._thread.post(lambda: self.port.open(secret)),
                post=self._core_thread.post,
            ),
            lease_ttl=LEASE_TTL,
            clock=lambda: self.now,
            wall_clock=lambda: 1.7e9 + self.clock.now + self.wall_offset,
            batch=BATCH,
        )
        self.clock.later(warm_after, self._warmed)
        self.wake()

    def __repr__(self) -> str:
        return f"{self.name}/{self.settings.incarnation}"

    @property
    def now(self) -> float:
        """Its own monotonic clock."""
        return self.clock.now - self.stood_still

    @property
    def stopped(self) -> bool:
        return self.dead or self.frozen

    @property
    def suspended(self) -> bool:
        """Whether its machine is: its worker processes and the worker stores that it hosts are frozen too."""
        return self.suspensions > 0

    @property
    def joining(self) -> bool:
        """Whether its worker processes have taken no step since it joined others; of those that report none, whether
        they have just been started."""
        workers = self.workers.view
        plan, rank = workers.plan, workers.plan.rank if workers.plan is not None else None
        if plan is None or rank is None:
            return True
        fresh = self.world.walk.session or self.now - workers.began_at < self.settings.crash_limits.stable_time
        return rank.joined > plan.value.oldest and self.workers.stepped < rank.joined and fresh

    @property
    def live(self) -> bool:
        """Whether it takes part, or could."""
        return not self.dead and self.exit is None and self.leaving_since is None

    def wake(self) -> None:
        """Decides again, and resumes after a freeze."""
        self._thread.post(lambda: None)
        self._core_thread.wake()

    def post(self, call: Callable[[], None]) -> None:
        """`call` happens on the thread of its loop, which then decides again."""
        self._thread.post(call)

    def leave(self) -> None:
        if self.leaving_since is None:
            self.leaving_since = self.clock.now
            self.wake()

    def kill(self) -> None:
        self.dead = True
        self.workers.killed()

    @property
    def settings(self) -> MemberSettings:
        return self.loop.settings

    @property
    def store_view(self) -> StoreView:
        return self.loop.store_view

    @property
    def known_round(self) -> int:
        return self.store_view.plan.round if self.store_view.plan else 0

    def view(self) -> View:
        return self.loop.view()

    # -- the thread of the loop

    def _run(self) -> None:
        self.workers.tick()
        self._act()
        due = self.workers.deadline
        if due is not None and due != self._tick_at:
            self._tick_at = due
            self.clock.later(due - self.now + 1e-6, lambda: self._thread.post(lambda: None))

    def _act(self) -> None:
        for _ in range(MOST_ACTIONS):
            if self.exit is not None or self.stopped:
                return
            before = self.loop.reason
            action = self.loop.decide(self.now)
            if action.reason != before:
                self.clock.note(self.name, action.reason)
            if isinstance(action, Exit):
                self._exit(action)
                return
            until = self.loop.execute(action, self.now)
            if until is not None:
                if until != NEVER:
                    self.clock.later(until - self.now + 1e-6, lambda: self._thread.post(lambda: None))
                return
        raise Broken(f"{self} acts without end: {self.loop.reason}")

    # -- MemberOwner

    def state(self) -> LocalState:
        return LocalState(
            workers=self.workers.view,
            warm=self.warm,
            stores=self.world.walk.session and not self.no_stores,
            stepped=self.workers.stepped,
            leaving_since=self.leaving_since,
        )

    def decide(self, view: View, now: float) -> Action:
        return self._decisions.decide(view, now)

    def start_workers(self, action: StartWorkers, _now: float) -> None:
        self.world.invariants.starts(self, action.plan)
        self.world.invariants.saved_first(self, action.plan)
        self.workers.start(action.plan, alone=action.alone)

    def move_workers(self, action: MoveWorkers, _now: float) -> None:
        assert isinstance(self.workers, SessionWorkerGroup)
        self.world.invariants.starts(self, action.plan)
        self.workers.move(action.plan, action.step_grace)

    def stop_workers(self, action: StopWorkers, now: float) -> None:
        self.world.invariants.stops(self, self.view(), now)
        self.saves_for_all = self.saves_for_all or action.saves
        self.workers.stop(action.grace)

    # -- MemberIO

    @property
    def lease_expires_at(self) -> float | None:
        return self._core.lease_expires_at

    def submit(self, action: StoreAction) -> None:
        self.world.invariants.acts(self, action, self.view())
        self._core_thread.post(lambda: self._core.execute(action))

    def _exit(self, action: Exit) -> None:
        self.exit = action
        self.clock.note(self.name, f"exit {action.code.name}")
        self._core_thread.post(self._core.leave)
        self.clock.later(2.0, self.kill)
        self.world.exited(self)

    # -- observations

    def _done(self, action: StoreAction, error: StoreError | None) -> None:
        self.loop.done(action, error)
        if error is not None:
            self.clock.note(self.name, f"{type(action).__name__} failed: {error}")

    def _warmed(self) -> None:
        self.warm = True
        self.wake()

    def probe(
        self, members: Sequence[Member], timeout: float, on_result: Callable[[Mapping[str, Probe]], None]
    ) -> None:
        if self.no_descriptors:
            self.clock.later(timeout, lambda: self._thread.post(lambda: on_result({})))
            return

        def ended() -> None:
            found = {
                member.name: Probe(
                    incarnation=member.value.incarnation,
                    reachable=known[member.name] is not None,
                    asked_at=asked_at,
                    at=self.now,
                    round=known[member.name] or 0,
                )
                for member in members
            }
            self._thread.post(lambda: on_result(found))

        asked_at = self.now
        known = {member.name: self._probe_one(member) for member in members}
        silent = any(known[item.name] is None and not self.world.refuses_connections(self, item) for item in members)
        self.clock.later(timeout if silent else self.clock.latency(), ended)

    def _probe_one(self, member: Member) -> int | None:
        """Returns the round that it knows; None: it does not answer."""
        there = self.world.incarnation(member.value.incarnation)
        if there is None or there.dead:
            if self.world.network.stranger:
                self.world.network.impersonate(self, member.value.incarnation, Purpose.PROBE)
            return None
        if not self.world.responds(self, member):
            return None
        known = connect(self, there, Purpose.PROBE)
        assert not isinstance(known, Link)
        return known

    def probe_outside(self, on_result: Callable[[bool], None]) -> None:
        answered = not self.cut_off and not self.no_descriptors
        delay = self.clock.latency() if answered else OUTSIDE_TIMEOUT
        self.clock.later(delay, lambda: self._thread.post(lambda: on_result(answered)))

    # -- the thread of the store

    def _after_core(self) -> None:
        if self._core_thread.idle:
            self._core.flush()
        due = self._core.due
        if due is not None:
            self.clock.later(due - self.now + 1e-6, lambda: self._core_thread.post(self._core.tick))

    def _wrote(self, operations: Sequence[Operation]) -> None:
        self.world.faults.wrote(self, operations)
