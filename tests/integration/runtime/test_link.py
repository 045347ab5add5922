"""What goes between workers and their agent besides progress: plans to the workers, snapshots to the agent and back."""

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

log = (pathlib.Path(sys.argv[1]) / f"{sys.argv[2]}.heard").open("a", buffering=1)
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
        said = {"plan": plan["round"], "world": plan["world_size"], "rank": plan["group_rank"]}
        log.write(json.dumps({"pid": os.getpid(), **said}) + "\\n")
"""


def heard(job: Job, member: str) -> list[dict[str, object]]:
    path = job.directory / f"{member}.heard"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def start(job: Job, *names: str) -> None:
    script = job.directory / "linked.py"
    script.write_text(SCRIPT)
    for name in names:
        job.start(name, "--max-restarts", "3", nnodes="1:2", script=[str(script), str(job.directory), name])


def test_the_memory_of_a_killed_worker_is_lost(job: Job) -> None:
    start(job, "a")
    first = eventually(lambda: [line for line in heard(job, "a") if "found" in line], what="the first worker")[0]
    assert first["found"] == ""
    eventually(lambda: any("plan" in line for line in heard(job, "a")), what="it has left its snapshot and follows")
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    lines = eventually(
        lambda: [line for line in heard(job, "a") if "found" in line and line["pid"] != first["pid"]], what="the next"
    )
    assert (lines[0]["found"], lines[0]["step"]) == ("state of round 1", 7)


def test_nobody_near_the_workers_knows_of_plans(job: Job) -> None:
    """Workers are ended for a new plan, unless they learn to go on under it; whoever follows beside them hears of every
    one."""
    start(job, "a")
    socket = eventually(
        lambda: [line["socket"] for line in heard(job, "a") if "socket" in line], what="the worker's agent"
    )[0]
    link = AgentLink(str(socket))
    link.follow()
    start(job, "b")
    plans = [link.next_plan(30.0) for _ in range(2)]
    assert [(plan["round"], plan["world_size"], plan["group_rank"]) for plan in plans if plan is not None] == [
        (1, 1, 0),
        (2, 2, 0),
    ]
    assert link.fetch() is not None, "and may fetch beside it"
    link.close()
    eventually(
        lambda: any(line.get("plan") == 2 and line["rank"] == 1 for line in heard(job, "b")),
        what="the newcomer knows its place",
    )
