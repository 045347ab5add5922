"""Heartbeats of the simulation: which neighbours an agent hears, as in rendezvous/heartbeat.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import Neighbour
from elasticjob_runtime.membership.silence import RESTART
from elasticjob_runtime.rendezvous.peer_protocol import Purpose

from tests.unit.runtime.simulation.peers import Link, beat, connect

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent

BEAT = 0.5
SILENT = RESTART.heartbeat


class Heartbeats:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._neighbours: tuple[Neighbour, ...] = ()
        self._heard_at: dict[str, float] = {}
        self._closed: set[str] = set()
        self._links: dict[str, Link] = {}
        self._rounds: dict[str, tuple[int, float]] = {}
        """Each neighbour's latest round, and when it was first heard."""
        self._ticking = False
        self.silent_after = SILENT

    def silent(self, now: float) -> frozenset[str]:
        late = {name for name, heard_at in self._heard_at.items() if now - heard_at > self.silent_after}
        return frozenset(late | self._closed)

    def silent_since(self, now: float) -> float | None:
        return min((self._heard_at[name] for name in self.silent(now)), default=None)

    def peer_round(self) -> tuple[int, float]:
        latest = max((round_number for round_number, _ in self._rounds.values()), default=0)
        return latest, min((at for round_number, at in self._rounds.values() if round_number == latest), default=0.0)

    def follow(self, neighbours: Sequence[Neighbour], now: float) -> None:
        if tuple(neighbours) == self._neighbours:
            return
        self._neighbours = tuple(neighbours)
        self._heard_at = {neighbour.name: now for neighbour in neighbours}
        self._closed = set()
        self._links = {}
        self._rounds = {}
        if not self._ticking:
            self._ticking = True
            self._agent.clock.later(BEAT, self._tick)

    def listen(self) -> None:
        """Receives the heartbeats that have arrived."""
        now, world = self._agent.now, self._agent.world
        for neighbour in self._neighbours:
            if world.faults.is_cut(self._agent.name, neighbour.name):
                continue
            peer = world.incarnation(neighbour.incarnation)
            if peer is None or peer.dead:
                self._closed.add(neighbour.name)
                self._links.pop(neighbour.name, None)
                if world.network.stranger:
                    world.network.impersonate(self._agent, neighbour.incarnation, Purpose.HEARTBEATS)
            elif not peer.frozen:
                self._hear(neighbour.name, peer, now)

    def _hear(self, name: str, peer: Agent, now: float) -> None:
        link = self._links.get(name)
        if link is None:
            connected = connect(self._agent, peer, Purpose.HEARTBEATS)
            if not isinstance(connected, Link):
                self._closed.add(name)
                return
            self._links[name] = connected
            round_number = connected.round
        else:
            round_number = beat(link)
        self._closed.discard(name)
        self._heard_at[name] = now
        if self._rounds.get(name, (0, 0.0))[0] != round_number:
            self._rounds[name] = (round_number, now)

    def _tick(self) -> None:
        if self._agent.dead or not self._neighbours:
            self._ticking = False
            return
        if not self._agent.frozen:
            before, round_before = self.silent(self._agent.now), self.peer_round()
            self.listen()
            if self.silent(self._agent.now) != before or before or self.peer_round() != round_before:
                self._agent.wake()
        self._agent.clock.later(BEAT, self._tick)
