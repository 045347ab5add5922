"""Copies of snapshots at a neighbour: complete and from an agent of the same run, or not there."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from elasticjob_runtime.agent.copies import RATE, Copy, Origin, PeerCopies, copy_rate, outdated, receivers_of
from elasticjob_runtime.contract import SECRET_BYTES, Env, Fence, Neighbour, SecretValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.rendezvous import copy_stream
from elasticjob_runtime.rendezvous.peer_protocol import MessageKey, NotAuthenticError
from elasticjob_runtime.rendezvous.peer_server import PeerServer
from elasticjob_runtime.training.memory import format as snapshot_format
from elasticjob_runtime.training.memory import limits
from elasticjob_runtime.training.memory.buffers import Buffer
from elasticjob_runtime.training.memory.format import Header, Layout

from hack.support import eventually

SECRET, ANOTHER = (SecretValue(secret=os.urandom(SECRET_BYTES).hex()) for _ in range(2))
PURPOSE = snapshot_format.purpose("run", "1", "state")


def neighbour(port: int = 1, address: str = "127.0.0.1", incarnation: str = "b1") -> Neighbour:
    return Neighbour(name="b", incarnation=incarnation, address=address, peer_port=port)


class Pair:
    """Agent a, whose neighbour is agent b, on one event loop."""

    def __init__(self, theirs: SecretValue = SECRET, rate: float = RATE) -> None:
        self.event_loop = EventLoop()
        self.server = PeerServer("b1", self.event_loop, lambda connection, _session: connection.close())
        self.server.open(theirs)
        self.a = PeerCopies(self.event_loop, "a", "127.0.0.1", rate=rate)
        self.b = PeerCopies(self.event_loop, "b", "127.0.0.2")
        self.server.on_copy = self.b.serve
        self.a.use_secret(SECRET)
        self.a.follow([neighbour(self.server.port)])

    def send(self, snapshot: Buffer, step: int, local_rank: int = 0, *, last: bool = False) -> bool:
        results: list[bool] = []
        self.a.send(local_rank, PURPOSE, step, [snapshot.fd], results.append, last=last)

        def finished() -> bool:
            self.event_loop.wait(0.01)
            return bool(results) and not self.b._receiving  # which holds a copy a moment after it says so

        eventually(finished, 30.0, what="the copy is sent, or given up")
        return results[0]

    def held(self) -> list[tuple[int, bytes]]:
        """Step and payload of what b holds."""
        found = []
        for fd in self.b.share(0, 1):
            buffer = Buffer(os.dup(fd))
            header = buffer.header()
            assert header is not None
            start = header.layout.payload_offset
            found.append((header.step, bytes(buffer.memory[start : start + header.layout.payload_size])))
            buffer.close()
        return found

    def close(self) -> None:
        self.a.close()
        self.b.close()
        self.server.close()
        self.event_loop.close()


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def make(**settings: Any) -> Pair:
        pairs.append(Pair(**settings))
        return pairs[-1]

    yield make
    for item in pairs:
        item.close()


def snapshot(step: int, payload: bytes, fence: Fence = Fence(1, 0, 1)) -> Buffer:  # noqa: B008 a constant
    buffer = Buffer.create()
    layout = Layout(structure_size=5, payload_size=len(payload))
    buffer.reserve(layout.size)
    snapshot_format.begin(buffer.memory)
    buffer.memory[layout.payload_offset : layout.payload_offset + len(payload)] = payload
    header = Header(fence=fence, step=step, purpose=PURPOSE, taken_at=1.0, layout=layout)
    snapshot_format.commit(buffer.memory, header)
    return buffer


PAYLOAD = os.urandom(3 << 20)


def test_the_neighbour_holds_the_newest_copy(pair: Callable[..., Pair]) -> None:
    both = pair()
    assert both.send(snapshot(4, PAYLOAD), 4)
    assert both.send(snapshot(8, PAYLOAD[::-1]), 8)
    assert both.held() == [(8, PAYLOAD[::-1])]


def test_the_loop_does_not_free_the_memory_of_copies(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 0.3 s per GiB, for which the agent would send no heartbeats."""
    both, closed, close = pair(), [], Buffer.close

    def record(buffer: Buffer) -> None:
        closed.append(threading.current_thread().name)
        close(buffer)

    for step in (4, 8, 12):
        assert both.send(snapshot(step, PAYLOAD), step)
        monkeypatch.setattr(Buffer, "close", record)
    eventually(lambda: closed.count("free-memory") >= 2, what="two copies are freed")
    assert "MainThread" not in closed


def test_copies_of_all_processes_are_read_by_whatever_number_of_processes(pair: Callable[..., Pair]) -> None:
    both = pair()
    for local_rank in range(3):
        assert both.send(snapshot(4, b"x" * 64), 4, local_rank)
    assert [len(both.b.share(rank, 2)) for rank in range(2)] == [2, 1]


def test_only_agents_of_the_same_run_leave_copies(pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture) -> None:
    both = pair(theirs=ANOTHER)
    assert not both.send(snapshot(4, PAYLOAD), 4)
    assert both.held() == []
    assert "b has no copy of this member's snapshots" in caplog.text


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda both, _: both.a.follow([neighbour(both.server.port, incarnation="b2")]), id="was replaced"),
        pytest.param(lambda both, _: setattr(both.b, "may_stay", False), id="leaves"),
        pytest.param(lambda both, _: both.a.follow([]), id="is not there"),
        pytest.param(lambda _, patch: patch.setattr(limits, "free_memory", lambda: 1 << 20), id="has no memory"),
    ],
)
def test_a_neighbour_has_no_copy_if_it(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, happens: Callable[[Pair, pytest.MonkeyPatch], None]
) -> None:
    both = pair()
    happens(both, monkeypatch)
    assert not both.send(snapshot(4, PAYLOAD), 4)
    assert both.held() == []


def test_a_snapshot_that_is_not_there_is_not_sent(pair: Callable[..., Pair]) -> None:
    assert not pair().send(snapshot(4, PAYLOAD), 5)


def test_a_neighbour_that_is_gone_costs_nothing_but_the_copy(pair: Callable[..., Pair]) -> None:
    both = pair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    both.a.follow([neighbour(port)])
    assert not both.send(snapshot(4, PAYLOAD), 4)
    both.a.follow([neighbour(both.server.port)])
    assert both.send(snapshot(4, PAYLOAD), 4)


def test_before_a_planned_change_the_next_neighbour_that_stays_gets_the_copy(pair: Callable[..., Pair]) -> None:
    both = pair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = neighbour(listener.getsockname()[1])
    both.a.follow([gone, neighbour(both.server.port)])
    assert not both.send(snapshot(4, PAYLOAD), 4)
    assert both.send(snapshot(4, PAYLOAD), 4, last=True)
    assert both.held() == [(4, PAYLOAD)]


@pytest.mark.parametrize("stays", [False, True])
def test_the_memory_of_a_member_that_stays_needs_no_copy_before_a_planned_change(
    pair: Callable[..., Pair], stays: bool
) -> None:
    both = pair()
    both.a.follow([])
    both.a.will_stay = stays
    assert both.send(snapshot(4, PAYLOAD), 4, last=True) == stays
    assert not both.send(snapshot(4, PAYLOAD), 5, last=True), "this one is not there"


def test_a_copy_that_a_worker_process_waits_for_is_sent_without_a_limit(pair: Callable[..., Pair]) -> None:
    """At the limit, it would take an hour."""
    both = pair(rate=0.001)
    both.a.hurries = True
    assert both.send(snapshot(4, PAYLOAD), 4, last=True)


def test_the_copy_before_stays_if_the_next_one_is_cut_off() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"\x00\x00\x00\x02{}" + MessageKey(b"key").mac(b"{}") + b"half")
        left.shutdown(socket.SHUT_WR)
        key = MessageKey(b"key")
        assert copy_stream.receive_about(right, key) == {}
        with pytest.raises(ConnectionResetError):
            copy_stream.receive_data(right, key, memoryview(bytearray(100)))


@pytest.mark.parametrize("change", ["data", "mac"])
def test_a_changed_byte_is_noticed(change: str) -> None:
    left, right = socket.socketpair()
    with left, right:
        mine, theirs = MessageKey(b"key"), MessageKey(b"key")
        mac = mine.mac(b"0123456789")
        left.sendall(b"012345678X" + mac if change == "data" else b"0123456789" + mac[::-1])
        with pytest.raises(NotAuthenticError):
            copy_stream.receive_data(right, theirs, memoryview(bytearray(10)))


def test_copies_are_sent_at_the_given_rate() -> None:
    left, right = socket.socketpair()
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    with left, right:
        for item in (left, right):
            item.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        size = 3 * copy_stream.PIECE
        theirs = MessageKey(b"key")
        for message in (b"{}", *[bytes(copy_stream.PIECE)] * 3):
            theirs.mac(message)
        copy_stream.acknowledge(right, theirs)
        reader = os.fork()
        if not reader:
            while right.recv(1 << 20):
                pass
            os._exit(0)
        copy_stream.send(
            left,
            MessageKey(b"key"),
            {},
            memoryview(bytes(size)),
            rate=lambda: size / 6.0,
            clock=lambda: now,
            sleep=sleep,
        )
        left.shutdown(socket.SHUT_WR)
        os.waitpid(reader, 0)
    assert now == pytest.approx(6.0)


A, B = Origin(member="a", local_rank=0, purpose=PURPOSE), Origin(member="b", local_rank=0, purpose=PURPOSE)
OTHER = Origin(member="b", local_rank=0, purpose=b"another")
OLD, NEW = Fence(1, 0, 1), Fence(1, 0, 2)
NEW_4, NEW_8, OLD_OF_B = Copy(A, NEW, 4), Copy(A, NEW, 8), Copy(B, OLD, 3)


@pytest.mark.parametrize(
    ("held", "arrived", "useless"),
    [
        pytest.param([], NEW_4, [], id="the first"),
        pytest.param([NEW_4], NEW_8, [NEW_4], id="the next"),
        pytest.param([Copy(A, OLD, 9)], NEW_4, [Copy(A, OLD, 9)], id="the first of a new group"),
        pytest.param([OLD_OF_B], NEW_4, [], id="an old one, until all have a new one"),
        pytest.param([NEW_4, OLD_OF_B], NEW_8, [NEW_4, OLD_OF_B], id="an old one, after that"),
        pytest.param([NEW_4, Copy(B, NEW, 4)], NEW_8, [NEW_4], id="another member's"),
        pytest.param([NEW_4, Copy(OTHER, OLD, 4)], NEW_8, [NEW_4], id="another state's"),
    ],
)
def test_a_copy_is_dropped_when_a_newer_one_is_sure(held: list[Copy], arrived: Copy, useless: list[Copy]) -> None:
    assert outdated(held, arrived) == useless


@pytest.mark.parametrize(
    ("neighbours", "expected"),
    [
        pytest.param([], [], id="alone"),
        pytest.param([(1, "10.0.0.2"), (1, "10.0.0.3")], ["10.0.0.2", "10.0.0.3"], id="the next"),
        pytest.param([(1, "10.0.0.1"), (1, "10.0.0.3")], ["10.0.0.3", "10.0.0.1"], id="another machine"),
        pytest.param([(1, "10.0.0.1")], ["10.0.0.1"], id="the same machine"),
        pytest.param([(0, "10.0.0.2"), (1, "10.0.0.3")], ["10.0.0.3"], id="one that listens"),
    ],
)
def test_the_next_member_on_another_machine_gets_the_copies(
    neighbours: Sequence[tuple[int, str]], expected: list[str]
) -> None:
    found = receivers_of([neighbour(port, address) for port, address in neighbours], "10.0.0.1")
    assert [item.address for item in found] == expected


def test_the_rate_is_a_setting(caplog: pytest.LogCaptureFixture) -> None:
    assert copy_rate({}) == RATE
    assert copy_rate({Env.COPY_RATE: "0"}) == 0.0
    assert copy_rate({Env.COPY_RATE: "100.5"}) == 100.5
    assert copy_rate({Env.COPY_RATE: "fast"}) == RATE
    assert "ELASTICJOB_COPY_RATE=fast is not a number of MiB per second" in caplog.text
