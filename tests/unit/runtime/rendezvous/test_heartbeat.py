"""Heartbeats between neighbours, over real sockets, on the test's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.contract import Neighbour, SecretValue
from elasticjob_runtime.membership.silence import IN_PLACE, RESTART
from elasticjob_runtime.rendezvous.heartbeat import BEAT, RECONNECT, Heartbeats
from elasticjob_runtime.rendezvous.peer_server import PeerServer

from hack.support import eventually
from tests.unit.runtime.rendezvous.sessions import Loop

SECRET = SecretValue(secret="5e" * 32)
SILENT = RESTART.heartbeat


class Agent:
    """The parts of an agent that greet, beat and listen."""

    def __init__(self, loop: Loop, name: str, incarnation: str = "1") -> None:
        self.name, self.incarnation = name, name + incarnation
        self.heartbeats = Heartbeats(loop)
        self.server = PeerServer(self.incarnation, loop, self.heartbeats.add_listener)
        self.server.open(SECRET)
        self.heartbeats.open(SECRET)

    @property
    def as_neighbour(self) -> Neighbour:
        return Neighbour(name=self.name, incarnation=self.incarnation, address="127.0.0.1", peer_port=self.server.port)

    def dies(self) -> None:
        self.heartbeats.close()
        self.server.close()


class Pair:
    """`a` listens to `b`."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.a, self.b = Agent(self.loop, "a"), Agent(self.loop, "b")
        self.a.heartbeats.follow([self.b.as_neighbour], self.loop.at)

    def passes(self, seconds: float, *beating: Agent) -> None:
        """Advances the clock one heartbeat at a time; only the `beating` agents send, and all receive."""
        end = self.loop.at + seconds
        while self.loop.at < end:
            self.loop.at += BEAT
            for agent in (self.a, *beating):
                agent.heartbeats.tick(self.loop.at)
            for _ in range(5):
                self.loop.wait(0.002)

    def sees(self, what: Callable[[], bool], *beating: Agent) -> None:
        def holds() -> bool:
            self.passes(BEAT, *beating)
            return what()

        eventually(holds, 10.0, interval=0.0)

    @property
    def silent(self) -> bool:
        return bool(self.a.heartbeats.silent(self.loop.at))


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.a.heartbeats.close()
    pair.loop.close()


def test_a_neighbour_that_sends_heartbeats_is_never_silent(pair: Pair) -> None:
    pair.passes(5 * SILENT, pair.b)
    assert not pair.silent


def test_a_neighbour_is_silent_only_after_the_silence_timeout(pair: Pair) -> None:
    pair.passes(2 * SILENT, pair.b)
    pair.loop.at += SILENT / 2
    assert not pair.silent
    pair.loop.at += SILENT
    assert pair.a.heartbeats.silent(pair.loop.at) == {"b"}


def test_a_silent_neighbour_that_resumes_its_heartbeats_is_heard(pair: Pair) -> None:
    pair.passes(1.5 * SILENT)
    pair.sees(lambda: not pair.silent, pair.b)


def test_a_closed_connection_is_noticed_at_once(pair: Pair) -> None:
    pair.passes(BEAT, pair.b)
    pair.b.dies()

    def noticed() -> bool:
        pair.loop.wait(0.01)  # no time passes on the test's clock
        return pair.silent

    eventually(noticed, 10.0)


def test_an_agent_that_was_suspended_itself_suspects_no_neighbour(pair: Pair) -> None:
    pair.passes(BEAT, pair.b)
    pair.loop.at += 60.0  # the machine was suspended
    pair.a.heartbeats.tick(pair.loop.at)
    assert not pair.silent
    pair.loop.at += SILENT + BEAT
    assert pair.silent, "the neighbour must be heard from then on"


def test_the_time_in_which_an_agent_stood_still_does_not_count(pair: Pair) -> None:
    """What its neighbours sent meanwhile is not read yet."""
    pair.a.heartbeats.silent_after = IN_PLACE.heartbeat
    pair.passes(BEAT, pair.b)
    pair.loop.at += BEAT + 0.4
    pair.a.heartbeats.tick(pair.loop.at)
    assert not pair.silent
    pair.loop.at += IN_PLACE.heartbeat - BEAT
    assert pair.silent


def test_an_agent_looks_when_a_neighbour_becomes_silent_and_not_at_its_next_heartbeat(pair: Pair) -> None:
    pair.a.heartbeats.silent_after = IN_PLACE.heartbeat
    pair.passes(BEAT, pair.b)
    pair.passes(2 * BEAT)
    deadline = pair.a.heartbeats.deadline
    assert deadline is not None
    assert pair.loop.at < deadline < pair.loop.at + BEAT
    pair.loop.at = deadline
    assert pair.silent
    pair.a.heartbeats.tick(pair.loop.at)
    assert (pair.a.heartbeats.deadline or 0.0) > pair.loop.at, "looks once"


def test_heartbeats_of_another_agent_at_that_address_do_not_count(pair: Pair) -> None:
    stranger = Agent(pair.loop, "c")
    pair.a.heartbeats.follow(
        [Neighbour(name="b", incarnation="b1", address="127.0.0.1", peer_port=stranger.server.port)], pair.loop.at
    )
    pair.sees(lambda: pair.silent, stranger)


@pytest.mark.parametrize(("address", "port"), [("no.such.host.invalid", 1), ("127.0.0.1", 70000), ("", 1)])
def test_a_neighbour_with_an_invalid_address_counts_as_silent(pair: Pair, address: str, port: int) -> None:
    bad = Neighbour(name="x", incarnation="x1", address=address, peer_port=port)
    pair.a.heartbeats.follow([bad, pair.b.as_neighbour], pair.loop.at)
    pair.sees(lambda: pair.a.heartbeats.silent(pair.loop.at) == {"x"}, pair.b)


def test_a_dead_connection_is_replaced(pair: Pair) -> None:
    pair.passes(BEAT, pair.b)
    pair.b.heartbeats._listeners.clear()  # a partition: neither side hears of the other's end
    pair.passes(RECONNECT + SILENT, pair.b)
    pair.sees(lambda: not pair.silent, pair.b)


def test_only_the_same_neighbour_stays_silent(pair: Pair) -> None:
    pair.passes(1.5 * SILENT)
    for neighbours, silent in (([pair.b], True), ([Agent(pair.loop, "c")], False), ([], False)):
        pair.a.heartbeats.follow([neighbour.as_neighbour for neighbour in neighbours], pair.loop.at)
        assert pair.silent is silent
    assert pair.a.heartbeats.deadline is None, "nothing to wait for"


def test_disconnected_listeners_are_removed(pair: Pair) -> None:
    pair.passes(BEAT, pair.b)
    other = Agent(pair.loop, "c")
    other.heartbeats.follow([pair.b.as_neighbour], pair.loop.at)
    pair.sees(lambda: len(pair.b.heartbeats._listeners) == 2, pair.b)
    other.heartbeats.close()
    pair.sees(lambda: len(pair.b.heartbeats._listeners) == 1, pair.b)


def test_a_heartbeat_carries_the_latest_round_that_its_sender_knows(pair: Pair) -> None:
    pair.b.heartbeats.round = 3
    pair.sees(lambda: pair.a.heartbeats.peer_round()[0] == 3, pair.b)
    first = pair.a.heartbeats.peer_round()[1]
    pair.passes(4 * BEAT, pair.b)
    assert pair.a.heartbeats.peer_round() == (3, first), "since when, not how often"
    pair.b.heartbeats.round = 4
    pair.sees(lambda: pair.a.heartbeats.peer_round()[0] == 4, pair.b)
    assert pair.a.heartbeats.peer_round()[1] > first


def test_the_latest_round_of_any_neighbour_counts(pair: Pair) -> None:
    other = Agent(pair.loop, "c")
    pair.a.heartbeats.follow([pair.b.as_neighbour, other.as_neighbour], pair.loop.at)
    pair.b.heartbeats.round, other.heartbeats.round = 2, 5
    pair.sees(lambda: pair.a.heartbeats.peer_round()[0] == 5, pair.b, other)
    pair.a.heartbeats.follow([pair.b.as_neighbour], pair.loop.at)
    assert pair.a.heartbeats.peer_round()[0] == 0, "a new line has said nothing yet"
