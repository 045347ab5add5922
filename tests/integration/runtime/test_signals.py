"""Signals to the agent reach the script, which has time to save."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Sequence

import pytest

from hack.support import eventually
from tests.integration.runtime.standalone import Launch

SIGNALS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda number, frame: (print("saved", flush=True), sys.exit(0)))
open("ready", "w").close()
while True:
    time.sleep(0.1)
"""


def test_a_signal_to_the_agent_reaches_the_scripts_handler(launch: Launch, tmp_path: pathlib.Path) -> None:
    run = launch(SIGNALS, torch=False)
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(signal.SIGUSR1)
    assert run.exit_code() == 0, run.output
    assert "saved" in run.output


LEAVING = """
import signal, subprocess, sys, time

loader = subprocess.Popen(["sleep", "600"])

def save(number, frame):
    time.sleep(0.2)
    print("saved on", signal.Signals(number).name, "data loader", loader.poll(), flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR2, save)
open("ready", "w").close()
try:
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    save(signal.SIGINT, None)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR2, 0)],
    ids=["SIGTERM", "SIGINT", "SIGUSR2"],
)
def test_a_script_gets_the_agents_signal_and_keeps_its_data_loaders_while_it_saves(
    launch: Launch, tmp_path: pathlib.Path, number: signal.Signals, code: int
) -> None:
    """When a signal ends a DataLoader's process, torch raises in the main thread, in the middle of the script's
    handler."""
    run = launch(LEAVING, "--start-method=spawn")
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(number)
    assert run.exit_code() == code, run.output
    assert f"saved on {number.name} data loader None" in run.output


@pytest.mark.parametrize(
    "flags", [(), ("--signals-to-handle=SIGINT,SIGTERM",)], ids=["default signals", "chosen signals"]
)
def test_a_job_under_nohup_survives_the_end_of_its_terminal(
    launch: Launch, tmp_path: pathlib.Path, flags: Sequence[str]
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = launch(LEAVING, "--start-method=spawn", *flags)
    finally:
        signal.signal(signal.SIGHUP, before)
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    run.process.send_signal(signal.SIGTERM)
    assert run.exit_code() == 143, run.output
    assert "saved on SIGTERM" in run.output
