"""An agent of the simulation: the real `decide` and the real RendezvousCore; loop, workers and peers as agent/agent.py
has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import ExitCode, Keys, MemberValue
from elasticjob_runtime.etcd.interface import Operation, StoreError
from elasticjob_runtime.membership import View, decide
from elasticjob_runtime.membership.actions import (
    Action,
    Exit,
    ProbePeers,
    ProbeWitnesses,
    PublishFailure,
    StartWorkers,
    StopWorkers,
    StoreAction,
    Wait,
)
from elasticjob_runtime.membership.view import (
    Member,
    MemberSettings,
    Probe,
    StoreView,
)
from elasticjob_runtime.rendezvous.core import Callbacks, RendezvousCore
from elasticjob_runtime.rendezvous.peers import PROBE_TIMEOUT
from elasticjob_runtime.rendezvous.plan_writer import PlanOutdatedError
from elasticjob_runtime.rendezvous.witnesses import TIMEOUT as OUTSIDE_TIMEOUT

from tests.unit.runtime.simulation.clock import Actor
from tests.unit.runtime.simulation.hearing import Hearing
from tests.unit.runtime.simulation.server import Connection
from tests.unit.runtime.simulation.workers import Workforce

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.world import World

KEYS = Keys("/sim", "run")
LEASE_TTL = 5.0
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
BATCH = 2
"""Members in one transaction: small, so that plans of few agents take several."""


class Agent:
    """One incarnation. Owner (server.py) of its connection."""

    def __init__(self, world: World, settings: MemberSettings, *, warm_after: float) -> None:
        self.world = world
        self.clock = world.clock
        self.settings = settings
        self.name = settings.me
        self.dead = False
        self.frozen = False
        self.cut_off = False
        self.lossy = False
        self.wall_offset = 0.0
        self.stood_still = 0.0
        """s for which its monotonic clock has stood still: a machine that was suspended."""
        self.no_descriptors = False
        """It can make no connection of its own."""
        self.out_since: float | None = None
        """When it was cut off from the store, by the world's clock; None: it is not, or only as the store is away for
        all."""
        self.alone_since: float | None = None
        """The same, or since the store is away."""
        self.awake_since = 0.0
        """When it last went on after a freeze."""
        self.witnesses_probed_at: float | None = None
        self.witness_answered_at: float | None = None
        self.exit: Exit | None = None
        self.leaving_since: float | None = None
        self.warm = False
        self.store_view = StoreView()
        self.workers = Workforce(self)
        self.hearing = Hearing(self)
        self.probes: dict[str, Probe] = {}
        self._probing = False
        self._busy = False
        self._retry_at = 0.0
        self._tries = 0
        self._reported_failure = 0
        self._said = ""
        self._loop = Actor(self.clock, lambda: self.stopped, self._decide)
        self._core_thread = Actor(self.clock, lambda: self.stopped, self._after_core)
        member = MemberValue(
            address="10.0.0.1",
            ports=[1, 2, 3, 4],
            nproc=settings.nproc,
            incarnation=settings.incarnation,
            peer_port=7,
        )
        self._core = RendezvousCore(
            Connection(world.server, self, self._wrote),
            KEYS,
            self.name,
            member,
            Callbacks(
                on_view=lambda view: self._loop.post(lambda: self._saw(view)),
                on_done=lambda action, error: self._loop.post(lambda: self._done(action, error)),
                on_trouble=lambda _error: self._loop.post(lambda: None),
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
    def live(self) -> bool:
        """Takes part, or could."""
        return not self.dead and self.exit is None and self.leaving_since is None

    def wake(self) -> None:
        """Decide again; and go on after a freeze."""
        self._loop.post(lambda: None)
        self._core_thread.wake()

    def leave(self) -> None:
        if self.leaving_since is None:
            self.leaving_since = self.clock.now
            self.wake()

    def kill(self) -> None:
        self.dead = True
        self.workers.killed()

    @property
    def known_round(self) -> int:
        return self.store_view.plan.round if self.store_view.plan else 0

    def view(self) -> View:
        heard = self.hearing.heard()
        return View(
            settings=self.settings,
            store=self.store_view,
            workers=self.workers.view,
            probes=self.probes,
            lease_expires_at=self._core.lease_expires_at,
            silent=self.hearing.silent(self.now),
            silent_since=self.hearing.silent_since(self.now),
            witnesses_probed_at=self.witnesses_probed_at,
            witness_answered_at=self.witness_answered_at,
            peer_round=heard[0],
            peer_round_at=heard[1],
            warm=self.warm,
            reported_failure=self._reported_failure,
            leaving_since=self.leaving_since,
            leaving_code=ExitCode.TERMINATED,
        )

    # -- the loop

    def _decide(self) -> None:
        while self.exit is None and not self.stopped:
            view = self.view()
            action = decide(view, self.now)
            if action.reason != self._said:
                self._said = action.reason
                self.clock.note(self.name, action.reason)
            if isinstance(action, Exit):
                self._leave_the_stage(action)
                return
            until = self._execute(action, view)
            if until is not None:
                if until != float("inf"):
                    self.clock.later(until - self.now + 1e-6, lambda: self._loop.post(lambda: None))
                return

    def _execute(self, action: Action, view: View) -> float | None:
        until = float("inf") if action.until is None else action.until
        match action:
            case Wait():
                return until
            case StartWorkers():
                self.world.invariants.starts(self, action.plan)
                self.world.invariants.saved_first(self, action.plan)
                self.workers.start(action.plan)
                return None
            case StopWorkers():
                self.workers.stop(action.grace)
                return None
            case ProbePeers():
                if not self._probing:
                    self._probing = True
                    self._probe(action.members)
                return until
            case ProbeWitnesses():
                self._probe_witnesses()
                return until
            case _:
                return self._to_store(action, view, until)

    def _to_store(self, action: Action, view: View, until: float) -> float:
        now = self.now
        if self._busy:
            return until
        if now < self._retry_at:
            return min(until, self._retry_at)
        self.world.invariants.acts(self, action, view)
        self._busy = True
        self._core_thread.post(lambda: self._core.execute(action))  # type: ignore[arg-type]  # everything else is handled above
        return until

    def _leave_the_stage(self, action: Exit) -> None:
        self.exit = action
        self.clock.note(self.name, f"exit {action.code.name}")
        self._core_thread.post(self._core.leave)
        self.clock.later(2.0, self.kill)
        self.world.exited(self)

    # -- observations

    def _saw(self, view: StoreView) -> None:
        self.store_view = view
        if view.plan is not None and view.plan.rank is not None:
            self.hearing.follow(view.plan.rank.neighbours)

    def _done(self, action: StoreAction, error: StoreError | None) -> None:
        self._busy = False
        if error is None:
            self._tries = 0
            if isinstance(action, PublishFailure):
                self._reported_failure = action.failure.round
        elif isinstance(error, PlanOutdatedError):
            self.clock.note(self.name, str(error))
        else:
            self._retry_at = self.now + RETRY_SECONDS[min(self._tries, len(RETRY_SECONDS) - 1)]
            self._tries += 1
            self.clock.note(self.name, f"{type(action).__name__} failed: {error}")

    def _warmed(self) -> None:
        self.warm = True
        self.wake()

    def _probe(self, members: Sequence[Member]) -> None:
        if self.no_descriptors:
            self.clock.later(PROBE_TIMEOUT, lambda: self._loop.post(lambda: self._probed({})))
            return

        def ended() -> None:
            found = {
                member.name: Probe(
                    incarnation=member.value.incarnation,
                    reachable=answers[member.name],
                    asked_at=asked_at,
                    at=self.now,
                    round=rounds[member.name],
                )
                for member in members
            }
            self._loop.post(lambda: self._probed(found))

        asked_at = self.now
        answers = {member.name: self.world.answers(self, member) for member in members}
        asked = {member.name: self.world.incarnation(member.value.incarnation) for member in members}
        rounds = {name: there.known_round if there and answers[name] else 0 for name, there in asked.items()}
        silent = any(not answers[member.name] and not self.world.refuses(self, member) for member in members)
        self.clock.later(PROBE_TIMEOUT if silent else self.clock.latency(), ended)

    def _probe_witnesses(self) -> None:
        asked_at = self.witnesses_probed_at = self.now
        answered = not self.cut_off and not self.no_descriptors

        def told() -> None:
            if answered:
                self.witness_answered_at = asked_at

        self.clock.later(self.clock.latency() if answered else OUTSIDE_TIMEOUT, lambda: self._loop.post(told))

    def _probed(self, found: dict[str, Probe]) -> None:
        self._probing = False
        self.probes.update(found)

    # -- the thread of the store

    def _after_core(self) -> None:
        if self._core_thread.idle:
            self._core.flush()
        due = self._core.due
        if due is not None:
            self.clock.later(due - self.now + 1e-6, lambda: self._core_thread.post(self._core.tick))

    def _wrote(self, operations: Sequence[Operation]) -> None:
        self.world.wrote(self, operations)
