"""Signals that the agent gets, and what a script makes of them."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Sequence

import pytest

from hack.support import eventually
from tests.integration.runtime.standalone import Start

pytestmark = pytest.mark.torch


SIGNALS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda number, frame: (print("saved", flush=True), sys.exit(0)))
open("ready", "w").close()
while True:
    time.sleep(0.1)
"""


def test_a_signal_to_the_agent_reaches_the_scripts_handler(start: Start, tmp_path: pathlib.Path) -> None:
    run = start(SIGNALS)
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(signal.SIGUSR1)
    assert run.ends() == 0, run.output
    assert "saved" in run.output


LEAVING = """
import signal, subprocess, sys, time

loader = subprocess.Popen(["sleep", "600"])

def save(number, frame):
    time.sleep(0.2)
    print("saved on", signal.Signals(number).name, "beside", loader.poll(), flush=True)
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR2, 0)])
def test_a_script_that_saves_on_a_signal_gets_that_signal_and_keeps_its_data_loaders(
    start: Start, tmp_path: pathlib.Path, number: signal.Signals, code: int
) -> None:
    """torch raises in the main thread, in the midst of what the script's handler does, when a signal ends a
    DataLoader's process."""
    run = start(LEAVING, "--start-method=spawn")
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(number)
    assert run.ends() == code, run.output
    assert f"saved on {number.name} beside None" in run.output


@pytest.mark.parametrize("flags", [(), ("--signals-to-handle=SIGINT,SIGTERM",)])
def test_a_terminal_that_closes_ends_no_job_under_nohup(
    start: Start, tmp_path: pathlib.Path, flags: Sequence[str]
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = start(LEAVING, "--start-method=spawn", *flags)
    finally:
        signal.signal(signal.SIGHUP, before)
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    run.process.send_signal(signal.SIGTERM)
    assert run.ends() == 143, run.output
    assert "saved on SIGTERM" in run.output
