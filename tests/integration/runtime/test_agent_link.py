"""What worker processes leave with their agent: snapshots of the training state."""

from __future__ import annotations

import json
import os
import signal

from hack.support import eventually
from tests.integration.runtime.agents import Job

SCRIPT = """
import json, os, pathlib, sys, time
from elasticjob_runtime.training.link import AgentLink

log = (pathlib.Path(sys.argv[1]) / f"{sys.argv[2]}.log").open("a", buffering=1)
link = AgentLink()
kept = link.fetch()
found = os.pread(kept.fds[0], 100, 0).decode() if kept else ""
log.write(json.dumps({"pid": os.getpid(), "found": found, "step": kept.step if kept else None,
                      "socket": os.environ["ELASTICJOB_AGENT_SOCKET"]}) + "\\n")
memory = os.memfd_create("state")
os.write(memory, f"state of round {os.environ['ELASTICJOB_ROUND']}".encode())
link.keep(7, [memory])
log.write(json.dumps({"pid": os.getpid(), "kept": True}) + "\\n")
time.sleep(600)
"""


def lines_of(job: Job, member: str) -> list[dict[str, object]]:
    path = job.directory / f"{member}.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def start(job: Job, *names: str) -> None:
    script = job.directory / "linked.py"
    script.write_text(SCRIPT)
    for name in names:
        job.start(name, "--max-restarts", "3", nnodes="1:2", script=[str(script), str(job.directory), name])


def test_a_restarted_worker_process_gets_the_snapshot_of_the_killed_one(job: Job) -> None:
    start(job, "a")
    first = eventually(
        lambda: [line for line in lines_of(job, "a") if "found" in line], what="the first worker process runs"
    )[0]
    assert first["found"] == ""
    eventually(lambda: any("kept" in line for line in lines_of(job, "a")), what="the snapshot is kept")
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    lines = eventually(
        lambda: [line for line in lines_of(job, "a") if "found" in line and line["pid"] != first["pid"]],
        what="the next worker process runs",
    )
    assert (lines[0]["found"], lines[0]["step"]) == ("state of round 1", 7)
