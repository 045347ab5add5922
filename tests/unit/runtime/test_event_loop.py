"""The agent's loop."""

from __future__ import annotations

import os
import socket
import threading
from typing import cast

import pytest
from elasticjob_runtime.agent.copies import MOST_AT_ONCE, PeerCopies
from elasticjob_runtime.contract import SecretValue
from elasticjob_runtime.event_loop import MAX_ERRORS, EventLoop
from elasticjob_runtime.rendezvous.outside_hosts import probe_outside_in_background
from elasticjob_runtime.rendezvous.peer_protocol import Session
from elasticjob_runtime.rendezvous.peers import probe_in_background

from tests.unit.runtime.membership.builders import make_member


def test_a_reused_descriptor_calls_only_its_new_owner() -> None:
    """As when a worker ends: its pipes are closed, and the connection that is accepted next gets the number of one of
    them."""
    event_loop, called = EventLoop(), []
    ready = [socket.socketpair() for _ in range(2)]
    quiet, its_end = socket.socketpair()
    replaced: list[int] = []

    def replace(mine: int, other: int) -> None:
        called.append("old")
        if not replaced:
            number = ready[other][0].fileno()
            event_loop.remove_reader(number)
            os.dup2(quiet.fileno(), number)
            event_loop.add_reader(number, lambda: called.append("new"))
            replaced.append(number)
        event_loop.remove_reader(ready[mine][0].fileno())

    for mine, other in ((0, 1), (1, 0)):
        event_loop.add_reader(ready[mine][0].fileno(), lambda mine=mine, other=other: replace(mine, other))  # type: ignore[misc]
        ready[mine][1].send(b"x")
    event_loop.wait(0)
    assert called == ["old"], "the file descriptor may belong to another callback by now"
    its_end.send(b"x")
    event_loop.wait(0)
    assert called == ["old", "new"]
    for one in (*ready[0], *ready[1], quiet, its_end):
        one.close()
    event_loop.close()


def fail() -> None:
    raise RuntimeError("a bug")


def test_a_callback_that_fails_does_not_end_the_agent() -> None:
    event_loop, called = EventLoop(), []
    readable, its_end = socket.socketpair()
    event_loop.add_reader(readable.fileno(), fail)
    its_end.send(b"x")
    event_loop.call_soon(lambda: called.append("next"))
    event_loop.wait(0)
    assert called == ["next"]
    for one in (readable, its_end, event_loop):
        one.close()


def test_a_callback_that_fails_again_and_again_does() -> None:
    event_loop = EventLoop()
    for _ in range(MAX_ERRORS - 1):
        event_loop.call_soon(fail)
    event_loop.wait(0)
    event_loop.call_soon(fail)
    with pytest.raises(RuntimeError, match="a bug"):
        event_loop.wait(0)
    event_loop.close()


def no_more_threads(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_members_are_probed_when_the_limit_of_threads_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    found: list[bool] = []
    address = socket.create_server(("127.0.0.1", 0))
    port = address.getsockname()[1]
    address.close()
    member = make_member("b", address="127.0.0.1", peer_port=port)
    probe_in_background([member], SecretValue(secret="5e" * 32), lambda probes: found.append(probes["b"].reachable))
    probe_outside_in_background([], found.append)
    assert found == [False, False]


def test_copies_are_refused_when_the_limit_of_threads_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    event_loop = EventLoop()
    copies = PeerCopies(event_loop, "a", "10.0.0.1")
    for _ in range(MOST_AT_ONCE + 1):
        connection, other = socket.socketpair()
        copies.serve(connection, cast("Session", None))
        assert other.recv(1) == b"", "the other agent waits"
        other.close()
    copies.close()
    event_loop.close()
