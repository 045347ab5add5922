"""Runs a MemberLoop on an event loop, with real sockets and a real store.

The store has its own thread (session.py), and so has each probe. They pass their results to the event loop as calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from elasticjob_runtime.contract import ImportsValue, MemberValue, SecretValue
from elasticjob_runtime.etcd.interface import Store
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.actions import Exit, PublishSuspicion, StoreAction
from elasticjob_runtime.membership.view import Member, Probe, StoreView
from elasticjob_runtime.rendezvous.config import MemberConfig
from elasticjob_runtime.rendezvous.core import Callbacks
from elasticjob_runtime.rendezvous.heartbeat import Heartbeats
from elasticjob_runtime.rendezvous.member import NEVER, MemberLoop, MemberOwner
from elasticjob_runtime.rendezvous.network import STORE_PORTS
from elasticjob_runtime.rendezvous.outside_hosts import probe_outside_in_background
from elasticjob_runtime.rendezvous.peer_protocol import Session
from elasticjob_runtime.rendezvous.peer_server import PeerServer
from elasticjob_runtime.rendezvous.peers import probe_in_background
from elasticjob_runtime.rendezvous.session import RendezvousThread

logger = logging.getLogger(__name__)


class RunnerOwner(MemberOwner, Protocol):
    """All methods are called on the event loop's thread."""

    def tick(self, now: float) -> None:
        """Called before each decision."""
        ...

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        ...

    def store_changed(self, before: StoreView, view: StoreView) -> None: ...


class MemberRunner:
    """Call all methods on the event loop's thread. Other threads may read `loop` while they hold `lock`."""

    def __init__(
        self,
        config: MemberConfig,
        store: Store,
        event_loop: EventLoop,
        owner: RunnerOwner,
        *,
        ports: Sequence[int],
        lock: contextlib.AbstractContextManager[Any] | None = None,
        on_trouble: Callable[[str], None] = lambda _trouble: None,
        on_imports: Callable[[ImportsValue | None, bool], None] = lambda _imports, _running: None,
        on_secret: Callable[[SecretValue], None] = lambda _secret: None,
        on_dropped: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """`ports`: the ports of this member's worker stores: STORE_PORTS for rounds, and the rest for the own world of
        its replica. `lock`: held while the view of the store changes and while a decision is made. `on_trouble`: see
        MemberLoop. `on_imports`, `on_secret`: see core.Callbacks. `on_dropped`: see PeerServer.

        Raises OSError if no port is free.
        """
        settings = config.settings
        self._config = config
        self._event_loop = event_loop
        self._owner = owner
        self._lock: contextlib.AbstractContextManager[Any] = lock or contextlib.nullcontext()
        self._on_secret = on_secret
        self._secret: SecretValue | None = None
        self.heartbeats = Heartbeats(event_loop)
        self._peers = PeerServer(
            settings.incarnation, event_loop, self.heartbeats.add_listener, config.port_range, on_dropped=on_dropped
        )
        self.loop = MemberLoop(settings, owner, self, self.heartbeats, clock=event_loop.now, on_trouble=on_trouble)
        member = MemberValue(
            address=config.address,
            ports=list(ports[:STORE_PORTS]),
            nproc=settings.nproc,
            replica_size=settings.replica_size,
            replica_ports=list(ports[STORE_PORTS:]),
            incarnation=settings.incarnation,
            peer_port=self._peers.port,
        )
        soon = event_loop.call_soon
        self.session = RendezvousThread(
            store,
            config.keys,
            settings.me,
            member,
            Callbacks(
                on_view=lambda view: soon(lambda: self._store_changed(view)),
                on_done=lambda action, error: soon(lambda: self.loop.done(action, error)),
                on_trouble=lambda error: soon(lambda: self.loop.executor.report_trouble(error)),
                on_imports=lambda imports, running: soon(lambda: on_imports(imports, running)),
                on_secret=lambda secret: soon(lambda: self._use_secret(secret)),
            ),
            lease_ttl=config.lease_ttl,
        )

    def start(self) -> None:
        """Registers with the store in the background. Peers are answered once `run` is called and this member has
        registered."""
        self.session.start()

    def receive_copies(self, on_copy: Callable[[socket.socket, Session], None]) -> None:
        """`on_copy`: see PeerServer."""
        self._peers.on_copy = on_copy

    def run(self) -> Exit:
        """Decides and executes until the decision is to exit, and returns that action."""
        while True:
            now = time.monotonic()
            self.heartbeats.tick(now)
            self._peers.tick(now)
            self._owner.tick(now)
            with self._lock:
                action = self.loop.decide(now)
            if isinstance(action, Exit):
                return action
            wait_until = self.loop.execute(action, now)
            if wait_until is not None:
                deadlines = (wait_until, self.heartbeats.deadline, self._peers.deadline, self._owner.deadline)
                until = min(deadline for deadline in deadlines if deadline is not None)
                self._event_loop.wait(None if until == NEVER else max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Revokes the lease, so that the others need not wait until it expires."""
        self.session.close()
        self.heartbeats.close()
        self._peers.close()

    # -- MemberIO

    @property
    def lease_expires_at(self) -> float | None:
        return self.session.lease_expires_at

    def submit(self, action: StoreAction) -> None:
        self.session.submit(self._with_last_heartbeat(action) if isinstance(action, PublishSuspicion) else action)

    def probe(
        self, members: Sequence[Member], timeout: float, on_result: Callable[[Mapping[str, Probe]], None]
    ) -> None:
        assert self._secret is not None  # members to probe are known once this one has registered

        def ended(found: Mapping[str, Probe]) -> None:
            self._event_loop.call_soon(lambda: on_result(found))

        probe_in_background(members, self._secret, ended, timeout)

    def probe_outside(self, on_result: Callable[[bool], None]) -> None:
        probe_outside_in_background(
            self._config.outside_hosts, lambda answered: self._event_loop.call_soon(lambda: on_result(answered))
        )

    def _with_last_heartbeat(self, action: PublishSuspicion) -> PublishSuspicion:
        last = self.heartbeats.last_heartbeat(action.suspicion.suspect)
        if last is None:
            return action
        heard_at, closed = last
        at = round(time.time() - (self._event_loop.now() - heard_at), 4)
        return dataclasses.replace(action, suspicion=dataclasses.replace(action.suspicion, heard_at=at, closed=closed))

    # -- observations

    def _use_secret(self, secret: SecretValue) -> None:
        self._secret = secret
        self.heartbeats.open(secret)
        self._peers.open(secret)
        self._on_secret(secret)

    def _store_changed(self, view: StoreView) -> None:
        before = self.loop.store_view
        with self._lock:
            self.loop.observe(view)
        self._owner.store_changed(before, view)
        self.heartbeats.round = self._peers.round = view.plan.round if view.plan is not None else 0
