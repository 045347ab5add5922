"""How agents of the simulation reach each other: the product's protocol (rendezvous/peer_protocol.py) over simulated
connections, and a stranger who records everything and uses what was recorded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import SecretValue
from elasticjob_runtime.rendezvous.peer_protocol import (
    NONCE_SIZE,
    Client,
    NotAuthenticError,
    Purpose,
    ServerHandshake,
    Session,
)

from tests.unit.runtime.simulation.invariants import require

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent
    from tests.unit.runtime.simulation.world import World

FIRST, LAST = 12, 24
"""Recordings kept per agent: how its first connections began, and what was sent last."""


class Port:
    """The port of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.secrets: tuple[SecretValue, ...] = ()

    def open(self, secret: SecretValue) -> None:
        if secret not in self.secrets[:1]:
            self.secrets = (secret, *self.secrets[:1])

    @property
    def secret(self) -> SecretValue:
        return self.secrets[0]

    def answer(self, hello: bytes) -> ServerHandshake:
        return ServerHandshake(self.secrets, self._agent.settings.incarnation, hello, self._nonce())

    def ask(self, incarnation: str, purpose: Purpose) -> Client:
        return Client(self.secret, incarnation, purpose, self._nonce())

    def _nonce(self) -> bytes:
        return self._agent.clock.random.randbytes(NONCE_SIZE)


@dataclasses.dataclass(slots=True)
class Link:
    """A connection for heartbeats."""

    client: Client
    session: Session
    peer: Agent
    round: int


def connect(asking: Agent, peer: Agent, purpose: Purpose) -> Link | int | None:
    """Connects to a live agent. Returns the link, or for a probe the round that the peer knows; None: it dropped the
    connection, or could not prove who it is."""
    network = asking.world.network
    client = asking.port.ask(peer.settings.incarnation, purpose)
    try:
        answer = peer.port.answer(client.hello)
        greeting = answer.greeting(peer.known_round)
        network.record(peer, client.hello, greeting)
        (known,) = client.receive(greeting)
        if purpose is Purpose.PROBE:
            return known
        confirm = client.reply
        network.record(peer, confirm)
        return Link(client, answer.session(confirm), peer, known)
    except (NotAuthenticError, ValueError):
        return None


def beat(link: Link) -> int:
    """The peer sends a heartbeat. Returns the round in it."""
    message = link.session.beat(link.peer.known_round)
    link.peer.world.network.record(link.peer, message)
    (link.round,) = link.client.receive(message)
    return link.round


class Network:
    """What a stranger on it can do. It sees every message, and knows no secret."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.stranger = False
        """It answers at the addresses of agents that have died."""
        self._recorded: dict[str, list[bytes]] = {}
        self.dropped = 0

    def record(self, at: Agent, *messages: bytes) -> None:
        recorded = self._recorded.setdefault(at.settings.incarnation, [])
        recorded.extend(messages)
        del recorded[FIRST:-LAST]

    def attack(self) -> None:
        self.stranger = True
        for agent in self._world.agents:
            if not agent.stopped:
                self._attack(agent)

    def _attack(self, agent: Agent) -> None:
        """Connects to `agent` with everything that was sent, and with messages of its own. It must never get a
        heartbeat."""
        if not agent.port.secrets:
            return
        forged = Client(SecretValue(secret="00" * 32), agent.settings.incarnation, Purpose.HEARTBEATS, bytes(16))
        messages = [forged.hello, b"", b"GET / HTTP/1.1\r\n"]
        for recorded in self._recorded.values():
            messages += recorded
        for hello in messages:
            try:
                answer = agent.port.answer(hello)
            except NotAuthenticError:
                self.dropped += 1
                continue
            for confirm in messages:
                try:
                    answer.session(confirm)
                except NotAuthenticError:
                    self.dropped += 1
                else:
                    require(False, f"a stranger passed for a member at {agent}")

    def impersonate(self, asking: Agent, dead: str, purpose: Purpose) -> None:
        """`asking` connects to the address of an agent that has died, where the stranger answers with all that this
        agent ever sent. It must never be taken for it."""
        recorded = self._recorded.get(dead, [])
        for start in range(len(recorded)):
            try:
                rounds = asking.port.ask(dead, purpose).receive(b"".join(recorded[start:]))
            except NotAuthenticError:
                self.dropped += 1
            else:
                require(not rounds, f"{asking} takes a stranger for {dead}")
