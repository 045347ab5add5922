"""What worker processes and their agent exchange besides progress: plans, and snapshots of the training state."""

from __future__ import annotations

import json
import os
import signal

from elasticjob_runtime.training.link import AgentLink

from hack.support import eventually
from tests.integration.runtime.agents import Job

SCRIPT = """
import json, os, pathlib, sys
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
link.follow()
while True:
    plan = link.next_plan(60.0)
    if plan is not None:
        received = {"plan": plan["round"], "world": plan["world_size"], "rank": plan["group_rank"]}
        log.write(json.dumps({"pid": os.getpid(), **received}) + "\\n")
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
    eventually(
        lambda: any("plan" in line for line in lines_of(job, "a")),
        what="the snapshot is kept and the worker process follows plans",
    )
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    lines = eventually(
        lambda: [line for line in lines_of(job, "a") if "found" in line and line["pid"] != first["pid"]],
        what="the next worker process runs",
    )
    assert (lines[0]["found"], lines[0]["step"]) == ("state of round 1", 7)


def test_a_process_that_follows_the_agent_gets_every_plan(job: Job) -> None:
    """Worker processes are stopped for a new plan; another process of the pod can follow all plans."""
    start(job, "a")
    socket = eventually(
        lambda: [line["socket"] for line in lines_of(job, "a") if "socket" in line], what="the worker process runs"
    )[0]
    link = AgentLink(str(socket))
    link.follow()
    start(job, "b")
    plans = [link.next_plan(30.0) for _ in range(2)]
    assert [(plan["round"], plan["world_size"], plan["group_rank"]) for plan in plans if plan is not None] == [
        (1, 1, 0),
        (2, 2, 0),
    ]
    assert link.fetch() is not None, "it can fetch the snapshot too"
    link.close()
    eventually(
        lambda: any(line.get("plan") == 2 and line["rank"] == 1 for line in lines_of(job, "b")),
        what="the joiner gets its rank",
    )
