"""An agent's socket for worker processes, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training.link import AgentLink
from elasticjob_runtime.training.memory import AgentMemory, agent_memory

from tests.unit.runtime.training.conftest import serving_agent


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """This process is a worker of this agent: local rank 0 of 1, in round 1."""
    with serving_agent() as path:
        monkeypatch.setenv(Env.AGENT_SOCKET, path)
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
        for variable, value in {"LOCAL_RANK": "0", "RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1"}.items():
            monkeypatch.setenv(variable, value)
        enter_round(monkeypatch, 1)
        yield path


def enter_round(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv(Env.ROUND, str(number))
    monkeypatch.setenv(Env.FENCE, f"1.0.{number}")


def release(memory: AgentMemory) -> None:
    """As the end of its process would."""
    for pair in memory._pairs.values():
        for buffer in pair.buffers:
            buffer.release()


@pytest.fixture
def process(agent: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AgentMemory]]:
    """What a new worker process has: its own link to the agent, in a round. The one before ends with its locks."""
    links: list[AgentLink] = []
    memories: list[AgentMemory] = []

    def start(round_number: int, *, run_id: str = "run", ends: bool = True) -> AgentMemory:
        for memory in memories if ends else ():
            release(memory)
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
        if (old := agent_memory._process.agent_memory) is not None:
            release(old)
        monkeypatch.setattr(agent_memory, "_process", agent_memory._Process())
        enter_round(monkeypatch, round_number)

    start(1)
    return start
