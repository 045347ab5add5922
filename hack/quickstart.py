"""`make quickstart`: three agents train on this machine, without a cluster. One worker process is killed, then a fourth
agent joins; no other process restarts, and no step is lost."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from hack.chaos import script
from hack.chaos.costs import samples_lost
from hack.chaos.members import Job, JobError
from hack.embedded_etcd.server import EmbeddedServer

AGENTS = 3
LIMIT = float(os.environ.get("QUICKSTART_SECONDS", "90"))
"""s for each change: agents import torch, which takes seconds, and longer on a busy machine."""


def train(job: Job) -> None:
    """Raises JobError."""
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    job.start(AGENTS)
    say(f"{AGENTS} agents start: each imports torch")
    job.wait_training(AGENTS, LIMIT)
    say(f"{AGENTS} worker processes train")
    victim = job.members()[1]
    killed, victims = job.kill(victim)
    say(f"{victim}'s worker process is killed")
    cost = job.wait_change(killed, LIMIT, victims=victims)
    if cost is None:
        raise JobError("the others do not continue")
    say(f"{cost.world} worker processes continue: {cost.first_step:.2f} s after the kill, {cost.steps_lost} steps lost")
    job.wait_training(AGENTS, LIMIT)
    say("its replacement has joined")
    joined = job.wait_change(job.start(1), LIMIT, world=AGENTS + 1)
    if joined is None:
        raise JobError("no member joins")
    say(f"a fourth agent has joined: a pause of {max(0.0, joined.stall):.2f} s, {joined.steps_lost} steps lost")
    job.wait_training(AGENTS + 1, LIMIT)
    pids = {member: [one.process for one in job.ledger() if one.member == member] for member in job.agents}
    for member, processes in pids.items():
        print(f"{member}: {', then '.join(f'process {pid}' for pid in processes)}")
    if restarted := [member for member, found in pids.items() if len(found) != (2 if member == victim else 1)]:
        raise JobError(f"worker processes that were to continue restarted: {', '.join(restarted)}")
    if lost := cost.steps_lost + joined.steps_lost + samples_lost(job.ledger()):
        raise JobError(f"{lost} steps or samples were lost")
    print("No step was lost. No process restarted but the killed one.")


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="elasticjob-quickstart-"))
    with EmbeddedServer() as store:
        command = [
            *(sys.executable, "-m", "elasticjob_runtime", "--nnodes", f"2:{AGENTS + 1}", "--max-restarts", "3"),
            *("--rdzv-backend", "etcd-v3", "--rdzv-endpoint", store.endpoint, "--rdzv-id", "quickstart"),
            *("--local-addr", "127.0.0.1", script.__file__),
        ]
        settings = {"SAMPLES": "2000", "EPOCHS": "100000", "PACE": "0.05", "OUTPUT": str(folder / "{member}")}
        try:
            with Job(command, folder, settings) as job:
                train(job)
        except JobError as error:
            print(f"The quick start failed: {error}\nLogs and ledger: {folder}. On a busy machine, give it more time: ")
            print("QUICKSTART_SECONDS=300 make quickstart")
            return 1
        except KeyboardInterrupt:
            return 130
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
