"""Forming a group touches no connections but its own."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

from elasticjob_runtime.training.checkpoint.order import Kind, State
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.backend import Gloo
from elasticjob_runtime.training.session.forming import form
from elasticjob_runtime.training.session.interruption import Interruption, OverError
from elasticjob_runtime.training.session.links import Links, socket_names
from elasticjob_runtime.training.session.world import ProcessState, World
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from hack.support import eventually

pytestmark = pytest.mark.timeout(60)

PROCESS_STATE = ProcessState(state=State(step=0, kind=Kind.LIVE), layout="")


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        server.close()
        with other:
            yield one, other


def a_world(store: TCPStore, rank: int) -> World:
    environment = {
        "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "ELASTICJOB_ROUND": "1", "ELASTICJOB_FENCE": "1.0.1",
    }  # fmt: skip
    return World(round=1, attempt="1", step_grace=0.0, environment=environment)


def test_the_end_of_a_world_cuts_no_connection_that_another_thread_opened_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upload to S3, say."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    connect = torch_private.connect
    with contextlib.ExitStack() as stack:
        pairs: list[tuple[socket.socket, socket.socket]] = []

        def connect_and_more(*arguments: object) -> object:
            pairs.append(stack.enter_context(connection()))
            return connect(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(torch_private, "connect", connect_and_more)
        with ThreadPoolExecutor(2) as pool:
            made = [pool.submit(form, a_world(store, rank), PROCESS_STATE, Interruption(), Gloo()) for rank in range(2)]
            groups = [each.result().group for each in made]
        groups[1].forget()  # which is in this process, too
        groups[0].interrupt()
        eventually(groups[0].is_silent, what="gloo's connections have ended")
        for one, other in pairs:
            one.sendall(b"still there")
            assert other.recv(100) == b"still there"


def test_a_group_whose_connections_cannot_all_be_ended_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def no_descriptor(_fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", no_descriptor)
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(form, a_world(store, rank), PROCESS_STATE, Interruption(), Gloo()) for rank in range(2)]
        for each in made:
            with pytest.raises(OSError, match="raise the limit, ulimit -n"):
                each.result()
    monkeypatch.undo()
    links = Links(socket_names())
    with pytest.raises(OSError, match="found 0 of the 3 connections of gloo"):
        links.keep([], 4)


def test_an_attempt_that_is_given_up_leaves_the_connections_of_the_next_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next attempt begins while the thread of this one still connects, so that neither can tell whose a new
    connection is."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    world = a_world(store, 0)
    here = PrefixStore(world.prefix, store)
    interruption = Interruption()
    connect = torch_private.connect
    peers: list[object] = []

    def peer() -> None:
        """Connects, and never says that it has."""
        here.set("standing/1", PROCESS_STATE.to_json())
        peers.append(connect(PrefixStore("group", here), 1, 2, 20.0))

    with contextlib.ExitStack() as stack:
        pairs: list[tuple[socket.socket, socket.socket]] = []

        def connect_during_the_next(*arguments: object) -> object:
            pairs.append(stack.enter_context(connection()))
            return connect(*arguments)  # type: ignore[arg-type]

        threading.Thread(target=peer, daemon=True).start()
        monkeypatch.setattr(torch_private, "connect", connect_during_the_next)
        threading.Timer(0.5, interruption.end).start()
        with pytest.raises(OverError):
            form(world, PROCESS_STATE, interruption, Gloo())
        [(one, other)] = pairs
        one.sendall(b"still there")
        assert other.recv(100) == b"still there"
