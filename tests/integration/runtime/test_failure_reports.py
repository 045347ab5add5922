"""What is reported when worker processes fail: the error, the exit code, and which failure was the cause."""

from __future__ import annotations

import os
import signal

import pytest
from elasticjob_runtime.contract import PEER_LOST

from hack.support import eventually
from tests.integration.runtime.agents import Job
from tests.integration.runtime.standalone import Launch

pytestmark = pytest.mark.torch


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
