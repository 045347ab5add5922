"""Forming a group touches no connections but its own."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

from elasticjob_runtime.training import round_store
from elasticjob_runtime.training.checkpoint.order import Kind, State
from elasticjob_runtime.training.session import forming, torch_private
from elasticjob_runtime.training.session.backend import Gloo, form_timeout
from elasticjob_runtime.training.session.forming import Formed, form
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


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """Of processes whose gloo connects on this machine."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return new_store()


def new_store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def form_two(pool: ThreadPoolExecutor, store: TCPStore) -> list[Future[Formed]]:
    """Both processes of a world, in this one."""
    return [pool.submit(form, a_world(store, rank), PROCESS_STATE, Interruption(), Gloo()) for rank in range(2)]


def a_world(store: TCPStore, rank: int, size: int = 2) -> World:
    environment = {
        "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "ELASTICJOB_ROUND": "1", "ELASTICJOB_FENCE": "1.0.1",
    }  # fmt: skip
    return World(round=1, attempt="1", step_grace=0.0, environment=environment)


def test_a_group_has_more_time_to_form_the_more_processes_connect_to_each_other() -> None:
    assert [form_timeout(size) for size in (2, 200)] == [pytest.approx(5.06), pytest.approx(11.0)]


def test_the_end_of_a_world_cuts_no_connection_that_another_thread_opened_meanwhile(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload to S3, say."""
    connect = torch_private.connect
    with contextlib.ExitStack() as stack:
        pairs: list[tuple[socket.socket, socket.socket]] = []

        def connect_and_more(*arguments: object) -> object:
            pairs.append(stack.enter_context(connection()))
            return connect(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(torch_private, "connect", connect_and_more)
        with ThreadPoolExecutor(2) as pool:
            made = form_two(pool, store)
            groups = [item.result().group for item in made]
        groups[1].forget()  # which is in this process, too
        groups[0].interrupt()
        eventually(groups[0].is_silent, what="gloo's connections have ended")
        for one, other in pairs:
            one.sendall(b"still there")
            assert other.recv(100) == b"still there"


def test_a_group_whose_connections_cannot_all_be_ended_is_not_used(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:

    def no_descriptor(_fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", no_descriptor)
    with ThreadPoolExecutor(2) as pool:
        made = form_two(pool, store)
        for item in made:
            with pytest.raises(OSError, match="raise the limit, ulimit -n"):
                item.result()
    monkeypatch.undo()
    links = Links(socket_names())
    with pytest.raises(OSError, match="found 0 of the 3 connections of gloo"):
        links.keep([], 4)


def test_an_attempt_that_is_given_up_leaves_the_connections_of_the_next_one_alone(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt begins while the thread of this one still connects, so that neither can tell whose a new
    connection is."""
    world = a_world(store, 0)
    here = PrefixStore(world.prefix, store)
    interruption = Interruption()
    connect = torch_private.connect
    peers: list[object] = []

    def peer() -> None:
        """Connects, and never says that it has."""
        here.set("standing/1", PROCESS_STATE.to_json())
        here.add("standing/count", 1)
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


class CountedStore:
    """Counts what one process asks of the store, without its looks that find nothing yet."""

    def __init__(self, store: TCPStore) -> None:
        self._store = store
        self.keys, self.bytes = 0, 0

    def set(self, key: str, value: str) -> None:
        self.keys += 1
        self._store.set(key, value)

    def add(self, key: str, value: int) -> int:
        self.keys += 1 if value else 0
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        found: bool = self._store.check(keys)
        self.keys += len(keys) if found else 0
        return found

    def get(self, key: str) -> bytes:
        return self._counted([self._store.get(key)])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._counted(self._store.multi_get(keys))

    def _counted(self, values: list[bytes]) -> list[bytes]:
        self.keys += len(values)
        self.bytes += sum(map(len, values))
        return values


class NoGroup:
    """Connects to nothing."""

    addresses = ()

    def connect(self, *_: object) -> NoGroup:
        return self

    def keep(self, *_: object) -> None:
        pass

    forget = is_silent = interrupt = keep


def costs_of_forming(size: int, monkeypatch: pytest.MonkeyPatch) -> list[CountedStore]:
    """What the processes of a world ask of the store, rank 0 last. Rank 1 is a step behind."""
    store = new_store()
    stores: list[CountedStore] = []

    def connect(*_: object) -> CountedStore:
        stores.append(CountedStore(store))
        return stores[-1]

    monkeypatch.setattr(round_store, "connect", connect)
    monkeypatch.setattr(forming, "PrefixStore", lambda _, inner: inner)
    monkeypatch.setattr(forming, "form_timeout", lambda _: 50.0)  # a busy machine has few cores for 64 processes

    def form_as(rank: int) -> list[int]:
        state = dataclasses.replace(PROCESS_STATE, state=State(step=0 if rank == 1 else 1, kind=Kind.LIVE))
        formed = form(a_world(store, rank, size), state, Interruption(), NoGroup())  # type: ignore[arg-type]
        return [item.state.step for item in formed.process_states]

    with ThreadPoolExecutor(size) as pool:
        assert all(steps == [1, 0, *[1] * (size - 2)] for steps in pool.map(form_as, range(size)))
    return sorted(stores, key=lambda item: item.keys)


def test_forming_costs_a_rank_as_much_in_a_large_world_as_in_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except rank 0, which reads once what each of them has written."""
    *small, _ = costs_of_forming(4, monkeypatch)
    *large, rank_0 = costs_of_forming(64, monkeypatch)
    assert {item.keys for item in (*small, *large)} == {8}
    assert max(item.bytes for item in large) <= max(item.bytes for item in small) + 8
    assert rank_0.keys <= 4 * 64 + 8


def test_a_process_that_is_started_again_for_the_same_plan_is_not_taken_for_another_one(store: TCPStore) -> None:
    here, interruption = PrefixStore(a_world(store, 0).prefix, store), Interruption()
    here.add("standing/count", 1)  # rank 0's predecessor; rank 1 has not arrived
    threading.Timer(0.3, interruption.end).start()
    with pytest.raises(OverError):
        form(a_world(store, 0), PROCESS_STATE, interruption, Gloo())
