"""What is reported when worker processes fail: the error, the exit code, and which failure was the cause."""

from __future__ import annotations

import os
import signal

import pytest

from hack.support import eventually
from tests.integration.runtime.agents import Job
from tests.integration.runtime.standalone import Launch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("import sys; sys.exit(300)", 44, "exit code 44"),
        ("raise KeyboardInterrupt", -2, "killed by SIGINT"),
        (
            "import sys\ndef hook(*_): raise OSError('hook')\nsys.excepthook = hook\nraise ValueError('first')",
            1,
            "ValueError: first",
        ),
        ("import threading\nthreading.Thread(target=lambda: 1 / 0).start()", 0, "ZeroDivisionError"),
        (
            "import os\nif os.fork() == 0: raise ValueError('in a child')\nos.wait(); raise KeyError('mine')",
            1,
            "KeyError: 'mine'",
        ),
    ],
    ids=[
        "exit code above 255",
        "KeyboardInterrupt",
        "failing excepthook",
        "exception in a thread",
        "exception in a forked child",
    ],
)
def test_every_way_to_end_is_reported(launch: Launch, script: str, code: int, words: str) -> None:
    run = launch(script, torch=False)
    assert run.exit_code() == (1 if code else 0), run.output
    assert words in run.output
    if code == 1:
        assert words in next(line for line in run.output.splitlines() if "a worker process failed:" in line)


def test_a_worker_process_that_a_signal_stops_counts_as_failed(job: Job) -> None:
    job.start_all("a b", "--max-restarts", "3", nnodes="2")
    stopped = job.wait_for_training(2)[1]
    os.kill(stopped.pid, signal.SIGSTOP)
    eventually(lambda: (now := job.plan) is not None and now.round > stopped.round, what="the next plan")
    assert f"killing worker process {stopped.pid}: stopped by SIGSTOP for 2 s" in job.logs
    assert [item.restarts for item in job.wait_for_training(2)] == [1, 1]
