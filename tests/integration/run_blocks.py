"""Runs the Python blocks of a page as they stand, each as a script with two ranks. Imports torch once.

    python run_blocks.py PAGE [WHAT_FOLLOWS]

WHAT_FOLLOWS is JSON: a name that a block defines -> code that uses it. Prints the line of each block that has worked.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hack.checks.examples import fenced
from hack.cluster.ports import free_ports

RANKS = 2


def run(code: str, name: str, follows: dict[str, str]) -> None:
    wait = time.sleep
    time.sleep = lambda _: wait(0.001)  # "stands for a larger model"
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, name, "exec"), names)  # noqa: S102 - that is what this is for
    for defined, use in follows.items():
        if defined in names:
            exec(compile(use, f"what uses {defined}", "exec"), names)  # noqa: S102
    if dist.is_initialized():
        dist.destroy_process_group()


def start(rank: int, port: int, code: str, name: str, follows: dict[str, str]) -> int:
    """Returns the pid."""
    pid = os.fork()
    if pid:
        return pid
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), **address}
    try:
        run(code, name, follows)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a child must never run the parent's code
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    page = Path(sys.argv[1])
    follows: dict[str, str] = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    for block in fenced(page.read_text(encoding="utf-8")):
        if block.language != "python":
            continue
        name = f"{page.name}:{block.line}"
        (port,) = free_ports(1)
        pids = [start(rank, port, block.text, name, follows) for rank in range(RANKS)]
        ends = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(ends):
            sys.exit(f"{name} has failed: {ends}")
        print(f"{name} works", flush=True)


if __name__ == "__main__":
    main()
