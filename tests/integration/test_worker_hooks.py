"""The hooks that report the phases of a forked worker process do not affect its script."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import auto_progress
from elasticjob_runtime.workers.zygote import hooks

pytestmark = pytest.mark.torch

BEFORE = """
    import torch, torch.distributed, torch.optim
    from elasticjob_runtime.workers.zygote import hooks
    original = torch.distributed.init_process_group
    hooks.install()
    print("begun")
"""


class Agent:
    """The agent's end of the socket."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / "agent"))
        self._listener.listen()
        self._listener.settimeout(10)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs the script in a process with a worker process's environment."""
        environment = {
            **os.environ, Env.AGENT_SOCKET: str(self.folder / "agent"), Env.ROUND: "3", "RANK": "0", "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TORCHELASTIC_ERROR_FILE": str(self.folder / "error.json"),
        }  # fmt: skip
        code = textwrap.dedent(BEFORE) + textwrap.dedent(script)
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert result.returncode == 0, result.stderr
        return result

    def received(self) -> list[dict[str, Any]]:
        connection, _ = self._listener.accept()
        connection.settimeout(10)
        return [json.loads(data) for data in iter(lambda: connection.recv(65536), b"")]

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def agent() -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="agent") as folder:
        agent = Agent(pathlib.Path(folder))
        yield agent
        agent.close()


def test_each_phase_is_reported_once_after_a_failed_init_too_and_torchs_own_functions_are_restored(
    agent: Agent,
) -> None:
    agent.run(
        f"""
        from torch.distributed import init_process_group
        assert init_process_group.__name__ == "init_process_group"
        try:
            init_process_group("unknown", rank=0, world_size=1)
        except (ValueError, RuntimeError, AssertionError):
            pass
        else:
            raise SystemExit("init_process_group accepted an unknown backend")
        init_process_group("gloo", init_method="file://{agent.folder}/meet", rank=0, world_size=1)
        assert torch.distributed.init_process_group is original
        assert torch.distributed.distributed_c10d.init_process_group is original
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        torch.distributed.destroy_process_group()
        """
    )
    messages = agent.received()
    assert [message["phase"] for message in messages] == ["fork", "connect", "first-step"]
    assert {message["round"] for message in messages} == {3}
    assert messages[1]["began"] <= messages[1]["time"]


def test_steps_of_torchs_own_optimizers_are_counted(agent: Agent) -> None:
    page = auto_progress.page_file(str(agent.folder / "error.json"))
    auto_progress.create_page(page)
    agent.run(
        """
        class Nesterov(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        model = torch.nn.Linear(2, 1)
        def loss():
            model.zero_grad()
            result = model(torch.ones(1, 2)).sum()
            result.backward()
            return result
        loss()
        for make in (torch.optim.Adam, torch.optim.SGD, Nesterov, torch.optim.LBFGS):
            optimizer = make(model.parameters(), lr=0.01)
            for _ in range(10):
                optimizer.step(loss)
        """
    )
    counted = auto_progress.read_page(page)
    assert counted is not None
    # Of another optimizer, the first step is taken for the end of the step before.
    assert counted.steps == 37


def test_backward_passes_are_counted_where_torch_has_no_optimizer_of_its_own(agent: Agent) -> None:
    page = auto_progress.page_file(str(agent.folder / "error.json"))
    auto_progress.create_page(page)
    agent.run(
        """
        torch.distributed.init_process_group("gloo", init_method="file://FOLDER/meet", rank=0, world_size=1)
        plain = torch.nn.Linear(2, 1)
        checkpointed = lambda inputs: torch.utils.checkpoint.checkpoint(plain, inputs, use_reentrant=True)
        compiled = torch.compile(plain, backend="eager")
        for model in (plain, checkpointed, compiled, torch.nn.parallel.DistributedDataParallel(plain)):
            for _ in range(5):
                model(torch.ones(1, 2, requires_grad=True)).sum().backward()
                for parameter in plain.parameters():
                    parameter.data -= 0.1 * parameter.grad
        torch.distributed.destroy_process_group()
        """.replace("FOLDER", str(agent.folder))
    )
    counted = auto_progress.read_page(page)
    assert counted is not None
    assert (counted.steps, counted.passes) == (0, 20)


@pytest.mark.nightly
def test_a_compiled_function_may_call_backward(agent: Agent) -> None:
    agent.run(
        """
        model = torch.nn.Linear(2, 1)
        def train():
            model(torch.ones(1, 2)).sum().backward()
        train = torch.compile(train, backend="eager")
        for _ in range(3):
            train()
        assert model.weight.grad.tolist() == [[3.0, 3.0]], model.weight.grad
        """
    )


@pytest.mark.nightly
def test_a_compiled_step_still_updates_the_model(agent: Agent) -> None:
    agent.run(
        """
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        step = torch.compile(optimizer.step, fullgraph=False, backend="eager")
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            step()
        assert not torch.equal(before, model.weight)
        """
    )
    assert next(message["phase"] for message in agent.received()) == "fork"


def test_stacks_are_written_even_while_the_main_thread_is_in_c_code(agent: Agent) -> None:
    agent.run(
        """
        import os, time
        def waits_in_c():
            os.kill(os.getpid(), hooks.STACKS_SIGNAL)
        waits_in_c()
        """
    )
    text = hooks.stacks({0: agent.folder / "error.json"})
    assert text.startswith("Stacks of local rank 0:\n")
    assert "in waits_in_c" in text


def test_a_worker_process_without_the_hook_is_not_signalled(tmp_path: pathlib.Path) -> None:
    assert hooks.stacks({0: tmp_path / "error.json"}) == ""
    hooks.request_stacks(os.getpid(), tmp_path / "error.json")  # sends no signal, which would end this process
