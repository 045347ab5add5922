"""`checkpoint_wanted`: all ranks save at the same call, however far apart they are."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import pathlib
import queue
import random
import socket
import threading
import time
from typing import Any

import pytest
from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import background, checkpoint_wanted, progress, save_request
from elasticjob_runtime.training.link import AgentLink
from elasticjob_runtime.training.save_request import SaveRequest, agree, session_ends

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_request, "_process", save_request._Process())
    monkeypatch.setattr(save_request, "NOT_KILLED", 0.0)
    monkeypatch.setattr(progress, "_state", progress._State())


class Agent:
    """The agent's end of the sockets of all ranks."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = str(folder / "agent.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(64)

    def link(self) -> tuple[AgentLink, socket.socket]:
        link = AgentLink(self.path)
        return link, self._listener.accept()[0]

    def accept(self) -> socket.socket:
        connection = self._listener.accept()[0]
        connection.settimeout(10.0)
        return connection


def ask(connection: socket.socket, seconds: float = 30.0) -> None:
    connection.send(json.dumps({"type": "save", "seconds": seconds}).encode())


class Ranks:
    """Ranks as threads, each with its own pace. `ahead`: how many steps a rank may be ahead of another one; None: any
    number."""

    def __init__(self, agent: Agent, world: int, *, ahead: int | None, seed: int) -> None:
        self.draw = random.Random(seed)
        self._store = torch.distributed.HashStore()
        self._ahead = ahead
        self._done = [0] * world
        self._moved = threading.Condition()
        self.said: queue.Queue[tuple[int, int]] = queue.Queue()
        """(rank, call that returned True)."""
        self.connections = []
        for rank in range(world):
            link, connection = agent.link()
            self.connections.append(connection)
            request = SaveRequest(link, self._agreeing(rank, world))
            threading.Thread(target=request.follow, daemon=True).start()
            pace = [self.draw.choice([0.0005, 0.001, 0.004]) for _ in range(8)]
            threading.Thread(target=self._train, args=(rank, request, pace), daemon=True).start()

    def _agreeing(self, rank: int, world: int) -> Any:
        return lambda begun, seconds: agree(self._store, rank, world, begun, seconds)

    def _may_take(self, step: int) -> bool:
        return self._ahead is None or min(self._done) >= step - 1 - self._ahead

    def _train(self, rank: int, request: SaveRequest, pace: list[float]) -> None:
        for step in itertools.count(1):
            time.sleep(pace[step % len(pace)])
            with self._moved:  # as a collective: no rank finishes a step that another one has not begun
                assert self._moved.wait_for(functools.partial(self._may_take, step), 60.0)
                self._done[rank] = step
                self._moved.notify_all()
            if request.is_now():
                self.said.put((rank, step))
                return


@pytest.mark.torch
@pytest.mark.parametrize("ahead", [0, 3, None], ids=["in lockstep", "3 steps ahead", "without collectives"])
@pytest.mark.parametrize("seed", range(5))
def test_all_ranks_save_at_the_same_call(tmp_path: pathlib.Path, ahead: int | None, seed: int) -> None:
    ranks = Ranks(Agent(tmp_path), 4, ahead=ahead, seed=seed)
    time.sleep(0.02)
    for connection in ranks.draw.sample(ranks.connections, 4):
        time.sleep(ranks.draw.choice([0.0, 0.002, 0.02]))
        ask(connection)
    said = dict(ranks.said.get(timeout=30.0) for _ in range(4))
    assert sorted(said) == [0, 1, 2, 3]
    assert len(set(said.values())) == 1, said


@pytest.mark.torch
def test_it_names_the_ranks_that_do_not_call(caplog: pytest.LogCaptureFixture) -> None:
    store = torch.distributed.HashStore()
    with caplog.at_level(logging.WARNING):
        assert agree(store, 0, 2, 7, 0.1) is None
    assert "Rank 1 did not call checkpoint_wanted()" in caplog.text
    assert agree(store, 1, 2, 7, 0.1) is None, "a rank that comes later obeys"


@pytest.fixture
def agent(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """Of this process, the only rank of round 5."""
    agent = Agent(tmp_path)
    for name, value in {Env.AGENT_SOCKET: agent.path, "RANK": "0", "WORLD_SIZE": "1", Env.ROUND: "5"}.items():
        monkeypatch.setenv(name, value)
    return agent


@pytest.fixture
def connection(agent: Agent) -> socket.socket:
    """Of this process, which has called once."""
    assert not checkpoint_wanted()
    connection = agent.accept()
    assert json.loads(connection.recv(1000)) == {"type": "saves", "rank": 0, "round": 5}
    return connection


def call_until_true() -> None:
    end = time.monotonic() + 10.0
    while not checkpoint_wanted():
        assert time.monotonic() < end


def test_a_script_with_a_session_hears_after_the_step_at_which_the_session_does(agent: Agent) -> None:
    assert not session_ends()
    connection = agent.accept()
    connection.recv(1000)
    assert not checkpoint_wanted()
    ask(connection, 1.5)
    end = time.monotonic() + 10.0
    while not session_ends():
        assert not checkpoint_wanted()
        assert time.monotonic() < end
    assert checkpoint_wanted(), "it can save what is its own"
    assert not session_ends()
    assert json.loads(connection.recv(1000))["type"] == "saved"


def test_the_call_after_the_save_reports_it_and_waits_to_be_killed(connection: socket.socket) -> None:
    asked = time.monotonic()
    ask(connection, 1.5)
    call_until_true()
    assert not checkpoint_wanted()
    assert time.monotonic() - asked >= 1.5
    assert json.loads(connection.recv(1000)) == {"type": "saved", "rank": 0, "round": 5}
    assert not checkpoint_wanted(), "an agent that does not kill this process costs the grace period once"


def test_a_save_in_the_background_is_complete_before_it_is_reported(connection: socket.socket) -> None:
    connection.settimeout(0.2)
    ask(connection, 30.0)
    call_until_true()
    may_end = threading.Event()
    background.begin(4, lambda: may_end.wait(30.0))
    threading.Thread(target=checkpoint_wanted, daemon=True).start()
    with pytest.raises(TimeoutError):
        connection.recv(1000)
    may_end.set()
    connection.settimeout(10.0)
    assert json.loads(connection.recv(1000))["type"] == "saved"


def test_steps_after_the_last_checkpoint_are_not_reported(agent: Agent, connection: socket.socket) -> None:
    progress.remember_checkpoint(3)
    progress.report_progress(9)
    reports = agent.accept()
    ask(connection)
    call_until_true()
    progress.remember_checkpoint(10)
    for step in (10, 11, 12):
        progress.report_progress(step)
    assert [json.loads(reports.recv(1000))["step"] for _ in range(2)] == [9, 10]
    reports.setblocking(False)
    with pytest.raises(BlockingIOError):
        reports.recv(1000)


def test_without_an_agent_no_checkpoint_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(Env.AGENT_SOCKET, raising=False)
    assert not any(checkpoint_wanted() for _ in range(10))


def test_an_agent_that_has_ended_wants_no_checkpoint(connection: socket.socket) -> None:
    connection.close()
    assert not any(checkpoint_wanted() for _ in range(1000))


@pytest.mark.usefixtures("connection")
def test_a_call_costs_less_than_a_tenth_of_a_millisecond() -> None:
    began = time.thread_time()  # of this thread, however busy the machine is
    for _ in range(10_000):
        checkpoint_wanted()
    assert time.thread_time() - began < 1.0
