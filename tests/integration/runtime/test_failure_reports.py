"""What is reported when worker processes fail: the error, the exit code, and which failure was the cause."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest
from elasticjob_runtime.contract import PEER_LOST

from hack.support import eventually
from tests.integration.runtime.agents import Job
from tests.integration.runtime.standalone import ELASTICRUN, TORCHRUN, Launch

pytestmark = pytest.mark.torch


RECORDED = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

def main():
    raise ValueError("no such data")

if __name__ == "__main__":
    (record(main) if sys.argv[1] == "record" else main)()
"""


def error_file(folder: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(folder.glob("*/attempt_*/0/error.json")).read_text())
    return found


@pytest.mark.nightly
def test_the_error_file_has_torchelastics_format_with_and_without_record(
    launch: Launch, tmp_path: pathlib.Path
) -> None:
    """torch's own reader reads it."""
    files: dict[str, dict[str, Any]] = {}
    for launcher, how in [(TORCHRUN, "record"), (ELASTICRUN, "record"), (ELASTICRUN, "plain")]:
        logs = tmp_path / f"logs-{launcher}-{how}"
        run = launch(RECORDED, f"--log-dir={logs}", launcher=launcher, arguments=[how])
        assert run.exit_code() == 1
        files[f"{launcher} {how}"] = error_file(logs)
        if launcher == ELASTICRUN:
            assert "rank 0" in run.output
            assert "ValueError: no such data" in run.output
    messages = {name: file["message"] for name, file in files.items()}
    assert {message["message"] for message in messages.values()} == {"ValueError: no such data"}
    assert {tuple(sorted(message["extraInfo"])) for message in messages.values()} == {("py_callstack", "timestamp")}
    for message in messages.values():
        assert message["extraInfo"]["timestamp"].isdigit()
        assert 'raise ValueError("no such data")' in message["extraInfo"]["py_callstack"]
    read = (
        "import glob, sys; from torch.distributed.elastic.multiprocessing.errors import ProcessFailure\n"
        "f = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=sys.argv[1]); print(f.message['message'], "
        "f.timestamp > 0)"
    )
    path = next((tmp_path / f"logs-{ELASTICRUN}-plain").glob("*/attempt_*/0/error.json"))
    result = subprocess.run(
        [sys.executable, "-c", read, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == "ValueError: no such data True"


VICTIMS = """
import time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
try:
    for step in range(100000):
        if rank == 1 and step == 3:
            raise ValueError("no such data")
        dist.all_reduce(torch.ones(1))
finally:
    dist.destroy_process_group()
    if rank == 1:
        time.sleep(0.15)  # the others report their failures before this rank's exception is raised
"""


def test_the_cause_is_reported_across_members(job: Job) -> None:
    """Even where its peers report first. The other order: tests/unit/runtime/membership/test_planning.py; of one
    member: tests/unit/runtime/workers/test_failure.py."""
    script = job.directory / "victims.py"
    script.write_text(VICTIMS)
    for name in "abc":
        job.start(name, "--start-method", "zygote", "--max-restarts", "0", nnodes="3", script=[str(script)])
    codes = [agent.exit_code(120) for agent in job.agents]
    assert codes == [1, 1, 1], job.logs
    outcome = job.outcome
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure["rank"] == 1, job.logs
    assert outcome.failure["reason"] != PEER_LOST
    assert outcome.message.startswith(f"rank 1 on {outcome.failure['member']} failed: ValueError: no such data")
    assert 'raise ValueError("no such data")' in outcome.failure["traceback"]


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
    assert [each.restarts for each in job.wait_for_training(2)] == [1, 1]
