"""One agent without workers: the real decisions and the real dealings with the store, run by whoever calls `step`."""

from __future__ import annotations

import collections
import secrets
import time
from collections.abc import Callable, Mapping

from elasticjob_runtime.contract import Keys, MemberValue
from elasticjob_runtime.etcd.interface import Store, StoreError, Unavailable
from elasticjob_runtime.membership import View, decide
from elasticjob_runtime.membership.actions import (
    Action,
    Exit,
    ProbePeers,
    ProbeWitnesses,
    StartWorkers,
    StopWorkers,
    StoreAction,
    Wait,
)
from elasticjob_runtime.membership.view import (
    MemberSettings,
    Probe,
    Role,
    StoreView,
    Workers,
    WorkersState,
)
from elasticjob_runtime.rendezvous.core import Callbacks, RendezvousCore
from elasticjob_runtime.rendezvous.peers import PeerServer, probe_in_background
from elasticjob_runtime.rendezvous.plan_writer import PlanOutdatedError

LEASE_TTL = 60.0
RETRY = 0.05
AGAIN = 0.5


class Member:
    """Not thread-safe but for `post`: one caller of `step` at a time (crowd.py sees to it)."""

    def __init__(
        self,
        name: str,
        store: Store,
        keys: Keys,
        total: int,
        wake: Callable[[Member], None],
        ranked: Callable[[int], None],
    ) -> None:
        self.name = name
        self.gone = False
        self.planner = False
        """Whether it has ever been first in line, and so has read all members."""
        self.wake_at: float | None = None
        """Monotonic time at which to call `step` even if nothing was posted."""
        self._store = store
        self._wake = wake
        self._ranked = ranked
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        incarnation = secrets.token_hex(6)
        self._settings = MemberSettings(
            me=name, incarnation=incarnation, nproc=1, min=1, max=total, max_restarts=0, start_grace=30.0
        )
        self.peers = PeerServer(name, incarnation)
        value = MemberValue(
            address="127.0.0.1",
            ports=[1, 2, 3, 4],
            nproc=1,
            incarnation=incarnation,
            peer_port=self.peers.port,
            started_at=time.time(),
        )
        callbacks = Callbacks(on_view=self._saw, on_done=self._done, on_trouble=lambda _error: None, post=self.post)
        self._core = RendezvousCore(store, keys, name, value, callbacks, lease_ttl=LEASE_TTL)
        self._view = StoreView()
        self._workers = Workers()
        self._probes: dict[str, Probe] = {}
        self._probing = self._busy = False
        self._again_at = 0.0

    def post(self, call: Callable[[], None]) -> None:
        """From any thread."""
        self._inbox.append(call)
        self._wake(self)

    def leave(self) -> None:
        """As an agent that ends: its lease is given back."""
        self.gone = True
        self._core.leave()

    def step(self) -> None:
        """Does all there is to do, as the agent's two threads would."""
        while self._inbox:
            self._inbox.popleft()()
        if self.gone:
            return
        if self._core.due is not None and time.monotonic() >= self._core.due:
            self._core.tick()
        self._core.flush()
        self._act()

    def _act(self) -> None:
        while True:
            now = time.monotonic()
            view = View(
                settings=self._settings,
                store=self._view,
                workers=self._workers,
                probes=self._probes,
                lease_expires_at=self._core.lease_expires_at,
            )
            action = decide(view, now)
            if not self._execute(action, now):
                again = now + RETRY if self._busy else self._again_at if self._again_at > now else None
                due = [at for at in (action.until, self._core.due, again) if at is not None]
                self.wake_at = min(due, default=None)
                return

    def _execute(self, action: Action, now: float) -> bool:
        """Whether to decide again at once."""
        match action:
            case Wait() | ProbeWitnesses():  # the store of a benchmark is never away
                return False
            case StartWorkers():
                self._workers = Workers(
                    state=WorkersState.RUNNING, round=action.plan.round, changed_at=now, plan=action.plan
                )
                self._ranked(action.plan.round)
                return True
            case StopWorkers():
                self._workers = Workers(round=self._workers.round, changed_at=now, plan=self._workers.plan)
                return True
            case ProbePeers():
                if not self._probing:
                    self._probing = True
                    probe_in_background(action.members, lambda found: self.post(lambda: self._probed(found)))
                return False
            case Exit():
                raise RuntimeError(f"{self.name} gave up: {action.reason}")
            case _:
                if self._busy or now < self._again_at:
                    return False
                self._busy = True
                self._core.execute(action)  # type: ignore[arg-type]  # everything else is handled above
                return not self._busy

    def _saw(self, view: StoreView) -> None:
        self._view = view
        self.planner = self.planner or view.role is Role.PLANNER

    def _done(self, action: StoreAction, error: StoreError | None) -> None:
        self._busy = False
        if isinstance(error, Unavailable):
            self._again_at = time.monotonic() + AGAIN  # as an agent does: on a busy machine etcd may be late
        elif error is not None and not isinstance(error, PlanOutdatedError):
            raise RuntimeError(f"{self.name}: {type(action).__name__}: {error}")

    def _probed(self, found: Mapping[str, Probe]) -> None:
        self._probing = False
        self._probes.update(found)
