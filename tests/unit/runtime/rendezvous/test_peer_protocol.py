"""What agents accept from each other: only what an agent of the same run says now, on this connection."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from elasticjob_runtime.contract import SecretValue
from elasticjob_runtime.rendezvous.peer_protocol import (
    CONFIRM_SIZE,
    HELLO_SIZE,
    NONCE_SIZE,
    Client,
    NotAuthenticError,
    Purpose,
    ServerHandshake,
    Session,
)

SECRET, OTHER = SecretValue(secret="5e" * 32), SecretValue(secret="07" * 32)
NONCES = (number.to_bytes(NONCE_SIZE, "big") for number in itertools.count(1))


def client(secret: SecretValue = SECRET, incarnation: str = "b1", purpose: Purpose = Purpose.HEARTBEATS) -> Client:
    return Client(secret, incarnation, purpose, next(NONCES))


def answer(hello: bytes, *known: SecretValue, incarnation: str = "b1") -> ServerHandshake:
    return ServerHandshake(known or (SECRET,), incarnation, hello, next(NONCES))


def connected() -> tuple[Client, Session]:
    one = client()
    answered = answer(one.hello)
    assert one.receive(answered.greeting(1)) == [1]
    return one, answered.session(one.reply)


def test_a_probe_ends_with_the_greeting() -> None:
    one = client(purpose=Purpose.PROBE)
    answered = answer(one.hello)
    assert answered.purpose is Purpose.PROBE
    assert one.receive(answered.greeting(2**63)) == [2**63]


def test_a_server_whose_secret_has_just_changed_knows_both() -> None:
    one = client(OTHER)
    assert one.receive(answer(one.hello, SECRET, OTHER).greeting(3)) == [3]


def test_messages_may_arrive_in_any_pieces() -> None:
    one = client()
    answered = answer(one.hello)
    rounds = [number for byte in answered.greeting(4) for number in one.receive(bytes([byte]))]
    session = answered.session(one.reply)
    rounds += [number for byte in session.beat(5) + session.beat(6) for number in one.receive(bytes([byte]))]
    assert [*rounds, *one.receive(session.beat(1) + session.beat(7))] == [4, 5, 6, 1, 7]
    assert one.reply == b"", "it is sent once"


HELLOS = {
    "another run's secret": lambda: client(OTHER).hello,
    "meant for another agent": lambda: client(incarnation="c1").hello,
    "meant for an earlier incarnation": lambda: client(incarnation="b0").hello,
    "changed purpose": lambda: client().hello.replace(b"1H", b"1P", 1),
    "changed nonce": lambda: client().hello[:13] + bytes(NONCE_SIZE) + client().hello[29:],
    "too short": lambda: client().hello[:-1],
    "too long": lambda: client().hello + b"x",
    "zeros": lambda: bytes(HELLO_SIZE),
    "HTTP": lambda: b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".ljust(HELLO_SIZE)[:HELLO_SIZE],
}


@pytest.mark.parametrize("hello", HELLOS.values(), ids=HELLOS)
def test_a_hello_that_is_not_of_an_agent_of_this_run_is_rejected(hello: Callable[[], bytes]) -> None:
    with pytest.raises(NotAuthenticError):
        answer(hello())


def test_a_recorded_hello_gets_no_heartbeats() -> None:
    """It is answered, since it is an agent's; but only who knows the secret can answer the greeting."""
    one = client()
    first = answer(one.hello)
    one.receive(first.greeting(1))
    recorded_confirm = one.reply
    first.session(recorded_confirm)
    for confirm in (recorded_confirm, bytes(CONFIRM_SIZE), b""):
        with pytest.raises(NotAuthenticError):
            answer(one.hello).session(confirm)


GREETINGS = {
    "another run's secret": lambda _: ServerHandshake((OTHER,), "b1", client(OTHER).hello, next(NONCES)).greeting(1),
    "a recording of another connection": lambda _: answer(client().hello).greeting(1),
    "another agent's": lambda _: answer(client(incarnation="c1").hello, incarnation="c1").greeting(1),
    "the client's own hello": lambda one: one.hello,
    "zeros": lambda _: bytes(64),
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_a_greeting_that_is_not_the_agents_own_is_rejected(greeting: Callable[[Client], bytes]) -> None:
    one = client()
    with pytest.raises(NotAuthenticError):
        one.receive(greeting(one))


BEATS = {
    "repeated": lambda beats: [beats[0], beats[0]],
    "left out": lambda beats: [beats[1]],
    "of another connection": lambda _: [connected()[1].beat(1)],
    "another round": lambda beats: [(9).to_bytes(8, "big") + beats[0][8:]],
    "shifted by a byte": lambda beats: [b"\0" + beats[0]],
}


@pytest.mark.parametrize("sent", BEATS.values(), ids=BEATS)
def test_a_heartbeat_that_was_changed_repeated_or_left_out_is_rejected(
    sent: Callable[[list[bytes]], list[bytes]],
) -> None:
    one, session = connected()
    beats = [session.beat(1), session.beat(2)]
    with pytest.raises(NotAuthenticError):
        one.receive(b"".join(sent(beats)))


@pytest.mark.parametrize("seed", range(20))
def test_no_changed_byte_is_accepted(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        one = client()
        position, flipped = draw.randrange(HELLO_SIZE), 1 << draw.randrange(8)
        hello = bytearray(one.hello)
        hello[position] ^= flipped
        with pytest.raises(NotAuthenticError):
            answer(bytes(hello))
        greeting = bytearray(answer(one.hello).greeting(draw.randrange(1000)))
        greeting[draw.randrange(len(greeting))] ^= flipped
        with pytest.raises(NotAuthenticError):
            one.receive(bytes(greeting))


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_raise_nothing_else_and_are_not_kept(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        one = client()
        try:
            for _ in range(20):
                assert not one.receive(draw.randbytes(draw.randrange(1, 300)))
        except NotAuthenticError:
            continue
        pytest.fail("a kilobyte that is not an agent's was kept")


def test_a_secret_does_not_appear_in_representations_and_errors() -> None:
    assert SECRET.secret not in repr(SECRET)
    for text in ('{"secret": "5e5e"}', '{"secret": "%s"}' % ("zz" * 32), '{"secret": ["5e5e"]}'):
        with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is judged below
            SecretValue.from_json(text)
        assert "5e5e" not in str(raised.value)
        assert "zz" not in str(raised.value)
