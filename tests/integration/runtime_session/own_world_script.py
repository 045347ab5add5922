"""A worker process of a replica, without a session: its replica's world communicates all the time, and it says of every
plan that it has entered it.

OUTPUT.jsonl gets a line when the replica's world has formed, and one for each plan. All end when FINISH exists.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import time
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.training.link import AgentLink

VARIABLES = ("ELASTICJOB_REPLICA", "RANK", "WORLD_SIZE", "GROUP_RANK")


def note(**fields: Any) -> None:
    output = os.environ["OUTPUT"].replace("{local_rank}", os.environ["LOCAL_RANK"])
    with pathlib.Path(f"{output}.jsonl").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), **fields}) + "\n")


def follow(link: AgentLink, plan: dict[str, Any]) -> None:
    about = {"type": "plan-state", "round": plan["round"], "attempt": plan["attempt"]}
    states = ("heard", "arrived", "formed", "entered") if plan["environment"] else ("heard", "waiting")
    for state in states:
        link.tell({
            **about, "state": state, "local_rank": int(os.environ["LOCAL_RANK"]), "time": time.time(), "committed": 0
        })  # fmt: skip
    note(round=plan["round"], replicas=plan["replicas"])


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    note(world={name: os.environ[name] for name in VARIABLES})
    link = AgentLink()
    link.tell({
        "type": "hello", "in_place": True, "local_rank": int(os.environ["LOCAL_RANK"]), "pid": os.getpid()
    })  # fmt: skip
    finish = torch.zeros(1)
    while not finish.item():
        if plan := link.next_plan(0.05):
            follow(link, plan)
        finish = torch.tensor([float(os.path.exists(os.environ["FINISH"]))])
        dist.all_reduce(finish, dist.ReduceOp.MAX)


if __name__ == "__main__":
    main()
