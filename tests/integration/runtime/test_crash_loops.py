"""Worker processes that crash again and again, or hang: real agents on a real etcd."""

from __future__ import annotations

import pathlib

import pytest
from elasticjob_runtime.contract import ExitCode

from tests.integration.runtime.agents import QUICK, SOURCE, Job
from tests.integration.runtime.small_torch import write_small_torch

CRASHING = """
import json, os, pathlib, socket, sys, time

here, last = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with (here / "starts").open("a") as starts:
    starts.write(f"{time.time()}\\n")
if last:
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.connect(os.environ["ELASTICJOB_AGENT_SOCKET"])
    agent.send(json.dumps({"type": "progress", "rank": 0, "step": last, "time": time.time()}).encode())
if len((here / "starts").read_text().split()) >= int(sys.argv[3]):
    sys.exit(0)
raise RuntimeError(f"cannot go on at {time.time()}")
"""

HANGING = """
import sys, time
from elasticjob_runtime.training import report_progress

def wait_forever():
    time.sleep(1000)

for step in range(10):
    report_progress(step)
wait_forever()
"""


@pytest.fixture
def crashing(job: Job) -> pathlib.Path:
    script = job.directory / "crashing.py"
    script.write_text(CRASHING)
    return script


def starts(job: Job) -> list[float]:
    path = job.directory / "starts"
    return [float(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("method", ["spawn", "zygote"])
def test_a_script_that_raises_before_its_first_step_fails_the_job_at_its_second_attempt(
    job: Job, crashing: pathlib.Path, method: str
) -> None:
    script = [str(crashing), str(job.directory), "0", "99"]
    environment = {"PYTHONPATH": f"{write_small_torch(job.directory)}:{SOURCE}"}
    flags = ("--max-restarts", "10", "--start-method", method)
    agents = job.start_all("a b", *flags, nnodes="2", script=script, environment=environment)
    assert [agent.exit_code() for agent in agents] == [ExitCode.WORKERS_FAILED] * 2, job.logs
    outcome = job.outcome
    assert outcome is not None
    assert (outcome.reason, outcome.round) == ("ScriptFails", 2)
    line = 1 + CRASHING.splitlines().index('raise RuntimeError(f"cannot go on at {time.time()}")')
    assert f"the script failed twice at {crashing}:{line} before its first step" in outcome.message


def test_a_hanging_worker_process_is_stopped_and_its_stack_is_reported(job: Job) -> None:
    script = job.directory / "hanging.py"
    script.write_text(HANGING)
    conf = f"{QUICK},hang_min=1"
    agent = job.start(
        "a",
        "--hang-factor",
        "3",
        "--start-method",
        "zygote",
        "--max-restarts",
        "0",
        nnodes="1",
        conf=conf,
        script=[str(script)],
        environment={"PYTHONPATH": f"{write_small_torch(job.directory)}:{SOURCE}"},
    )
    assert agent.exit_code(90) == ExitCode.WORKERS_FAILED
    outcome = job.outcome
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure["reason"] == "Hang"
    assert outcome.failure["message"].startswith("hang: no step for ")
    assert "in wait_forever" in outcome.failure["traceback"]
    assert "in wait_forever" in agent.termination_file.read_text()
