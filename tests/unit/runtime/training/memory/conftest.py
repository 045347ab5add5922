"""An agent's socket for worker processes, and clients of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.agent.worker_server import WorkerServer
from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.training.link import AgentLink
from elasticjob_runtime.training.memory import AgentMemory, agent_memory


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The real server in a thread. This process is a worker of it: local rank 0 of 1, in round 1."""
    event_loop = EventLoop()
    server = WorkerServer(event_loop, lambda _progress: None)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            event_loop.wait(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    monkeypatch.setenv(Env.AGENT_SOCKET, server.path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    for variable, value in {"LOCAL_RANK": "0", "RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(variable, value)
    enter_round(monkeypatch, 1)
    yield server.path
    stop.set()
    thread.join()
    server.close()
    event_loop.close()


def enter_round(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv(Env.ROUND, str(number))
    monkeypatch.setenv(Env.FENCE, f"1.0.{number}")


@pytest.fixture
def process(agent: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AgentMemory]]:
    """What a new worker process has: its own link to the agent, in a round. The one before ends with its locks."""
    links: list[AgentLink] = []
    memories: list[AgentMemory] = []

    def start(round_number: int, *, run_id: str = "run", ends: bool = True) -> AgentMemory:
        for each in memories if ends else ():
            for pair in each._pairs.values():
                for buffer in pair.buffers:
                    buffer.release()
        enter_round(monkeypatch, round_number)
        links.append(AgentLink(agent))
        memories.append(AgentMemory(links[-1], Fence(1, 0, round_number), run_id))
        return memories[-1]

    yield start
    for link in links:
        link.close()


@pytest.fixture
def new_process(agent: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """From here on, this process is another worker process, in a later round."""
    assert agent

    def start(round_number: int) -> None:
        old = agent_memory._process.agent_memory
        for pair in old._pairs.values() if old is not None else ():
            for buffer in pair.buffers:
                buffer.release()
        monkeypatch.setattr(agent_memory, "_process", agent_memory._Process())
        enter_round(monkeypatch, round_number)

    start(1)
    return start
