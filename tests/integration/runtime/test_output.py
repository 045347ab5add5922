"""An unread console blocks neither the agent nor, for long, the worker processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import Env

from hack.support import eventually
from tests.integration.runtime.agents import QUICK, SOURCE, WORKER, Job

FLOOD = f"""
import os, pathlib, sys, threading
flooded = pathlib.Path(sys.argv[1], "flooded")

def flood():
    for number in range(40):
        os.write(2, b"%06d " % number * 9362 + b"\\n")  # 64 KiB: much more than pipe and buffer take
    flooded.touch()

threading.Thread(target=flood, daemon=True).start()
exec(compile(open({str(WORKER)!r}).read(), {str(WORKER)!r}, "exec"))
"""


@pytest.fixture
def stuck(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """An agent whose standard output and error are unread pipes, with a worker process that prints a lot."""
    script = job.directory / "flood.py"
    script.write_text(FLOOD)
    command = [
        sys.executable,
        "-S",
        "-m",
        "elasticjob_runtime",
        "--nnodes=2",
        "--rdzv-backend=etcd-v3",
        "--rdzv-endpoint",
        job.endpoint,
    ]
    flags = [
        "--rdzv-id",
        job.run_id,
        "--rdzv-conf",
        QUICK,
        "--max-restarts=1",
        "--start-method=spawn",
        "--tee=3",
        "--log-dir=logs",
    ]
    process = subprocess.Popen(
        [*command, *flags, str(script), str(job.directory)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), Env.MEMBER_ID: "stuck"},
        cwd=job.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.wait()


def test_an_unread_console_does_not_block_the_agent(job: Job, stuck: subprocess.Popen[bytes]) -> None:
    """It follows the plan, and its worker process can write everything."""
    other = job.start("reads", "--max-restarts=1", nnodes="2")
    before = job.wait_for_training(2)
    eventually((job.directory / "flooded").exists, 60, what="the worker process has written everything")
    job.command("reads", "raise")
    job.wait_for_training(2, after=before)
    job.finish()
    assert other.exit_code() == 0
    assert stuck.wait(120) == 0
    (log, *_) = sorted(pathlib.Path(job.directory, "logs").glob("*/attempt_1/0/stderr.log"))
    assert log.read_bytes().count(b"\n") >= 40, "the log file is complete whatever the console does"
    assert stuck.stderr is not None
    seen = stuck.stderr.read()
    assert len(seen) < log.stat().st_size
