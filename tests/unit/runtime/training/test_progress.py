"""Progress reports from the script to the agent."""

from __future__ import annotations

import json
import multiprocessing
import pathlib
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import channel, expect_pause, progress, report_progress


class Agent:
    """The agent's end of the socket."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(10)
        self.connection: socket.socket | None = None

    def receive(self) -> dict[str, Any]:
        if self.connection is None:
            self.connection = self.listener.accept()[0]
            self.connection.settimeout(10)
        message: dict[str, Any] = json.loads(self.connection.recv(65536))
        return message

    def stop(self) -> None:
        self.listener.close()
        if self.connection is not None:
            self.connection.close()
        self.path.unlink(missing_ok=True)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="agent") as directory:  # a Unix socket's path has at most 107 characters
        agent = Agent(pathlib.Path(directory) / "socket")
        monkeypatch.setenv(Env.AGENT_SOCKET, str(agent.path))
        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv(Env.ROUND, "5")
        monkeypatch.setattr(channel, "_channel", channel._Channel())
        monkeypatch.setattr(progress, "_state", progress._State())
        yield agent
        agent.stop()


def test_the_agent_gets_one_message_per_call(agent: Agent) -> None:
    progress.remember_checkpoint(100)
    report_progress(120, loss=0.25, accuracy=1)
    report_progress(121)
    message = agent.receive()
    assert message.pop("time") > 1_700_000_000
    assert message == {
        "type": "progress",
        "rank": 2,
        "round": 5,
        "step": 120,
        "last_checkpoint_step": 100,
        "metrics": {"loss": 0.25, "accuracy": 1.0},
    }
    assert agent.receive()["step"] == 121


def test_quick_steps_of_a_session_do_not_wake_the_agent_each_time(agent: Agent) -> None:
    """It gets the first one, and the last one at the end of the process."""
    for step in range(1, 101):
        progress.report_committed(step)
    progress._report_last()
    reported = [agent.receive()["step"]]
    while reported[-1] < 100:
        reported.append(agent.receive()["step"])
    assert reported[0] == 1
    assert len(reported) < 50


def test_slow_steps_of_a_session_are_all_reported(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_INTERVAL", 0.0)
    for step in (1, 2, 3):
        progress.report_committed(step)
    assert [agent.receive()["step"] for _ in range(3)] == [1, 2, 3]


def test_a_loss_that_is_not_finite_is_left_out(agent: Agent) -> None:
    report_progress(1, loss=float("nan"), gradient=float("inf"), rate=0.1)
    assert agent.receive()["metrics"] == {"rate": 0.1}


def test_an_agent_that_does_not_read_never_blocks_training(agent: Agent) -> None:
    for step in range(20_000):
        report_progress(step, loss=0.5)
    assert agent.receive()["step"] == 0, "the first reports arrive, the rest are dropped"


def test_reports_resume_when_a_missing_agent_is_back(agent: Agent) -> None:
    report_progress(1)
    assert agent.receive()["step"] == 1
    agent.stop()
    report_progress(2)
    report_progress(3)
    again = Agent(agent.path)
    try:
        report_progress(4)
        assert again.receive()["step"] == 4
    finally:
        again.stop()


def test_a_forked_child_has_its_own_connection(agent: Agent) -> None:
    report_progress(1)
    assert agent.receive()["step"] == 1
    child = multiprocessing.get_context("fork").Process(target=report_progress, args=(2,))
    child.start()
    connection = agent.listener.accept()[0]
    assert json.loads(connection.recv(65536))["step"] == 2
    child.join()
    connection.close()
    report_progress(3)
    assert agent.receive()["step"] == 3


def test_reporting_without_an_agent_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(Env.AGENT_SOCKET, raising=False)
    report_progress(1, loss=0.5)


@pytest.mark.parametrize("value", ["much", None, [1.0]])
def test_a_metric_that_is_not_a_number_is_named_in_the_error(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="the metric 'loss' is not a number"):
        report_progress(1, loss=value)


def test_reporting_progress_does_not_import_torch(agent: Agent) -> None:
    script = """
        import sys
        sys.modules["torch"] = None     # an import of torch fails
        from elasticjob_runtime.training import report_progress
        report_progress(7, loss=0.5)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    assert agent.receive()["step"] == 7


def test_an_expected_pause_is_announced_to_the_agent(agent: Agent) -> None:
    expect_pause(1800, "evaluation")
    message = agent.receive()
    assert (message["type"], message["phase"], message["seconds"], message["why"]) == (
        "phase",
        "pause",
        1800.0,
        "evaluation",
    )
    assert (message["rank"], message["round"]) == (2, 5)
    expect_pause(float("inf"))
    assert agent.receive()["seconds"] == float("inf")


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_pause_of_invalid_length_is_an_error(seconds: float) -> None:
    with pytest.raises(ValueError, match="expected a number of seconds"):
        expect_pause(seconds)


def test_announcing_a_pause_waits_for_a_busy_agent(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step makes up for a lost progress report, but a lost pause looks like a hang."""
    monkeypatch.setattr(progress, "PAUSE_WAIT", 60.0)
    report_progress(0)
    agent.receive()
    assert agent.connection is not None
    sent = 0
    for sent in range(1, 5000):  # until the socket is full and reports are dropped
        report_progress(sent)
    received: list[dict[str, Any]] = []

    def read() -> None:
        while not received or received[-1].get("phase") != "pause":
            received.append(agent.receive())

    reader = threading.Timer(0.1, read)
    reader.start()
    expect_pause(60)
    reader.join()
    assert (len(received) <= sent, received[-1]["seconds"]) == (True, 60.0), "progress was dropped, the pause was not"


def test_announcing_a_pause_does_not_wait_for_a_missing_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(Env.AGENT_SOCKET, "/nowhere/agent.sock")
    expect_pause(60)
