"""Trains with a session and does what MODE says: something that scripts do, and should not, or do at a bad time."""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import signal
import time

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch.nn.parallel import DistributedDataParallel

MODE = os.environ["MODE"]
NAME = os.environ["WORKER_NAME"]
STEPS = 40


def mark(what: str) -> None:
    """For the test, which waits until this process is there."""
    with pathlib.Path(f"{os.environ['OUTPUT']}.marks").open("a") as marks:
        marks.write(f"{what}\n")


def accuracy(step: int) -> float:
    mark(f"evaluate {step}")
    model.eval()
    total = torch.ones(1)
    session.values["calls"] = session.values.get("calls", 0) + 1
    time.sleep(0.3 if step in (5, 10) else 0.02)
    dist.all_reduce(total)
    model.train()
    return float(total)


faulthandler.register(signal.SIGUSR1)
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
model = torch.nn.Linear(3 if MODE == "other model" and NAME == "c" else 2, 1)
trained = DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer) if MODE == "scheduler after all-reduce" else None
session = ElasticSession(model=trained, optimizer=optimizer, scheduler=scheduler)
found = []
for _ in range(session.epoch, STEPS):
    for batch in session.batches([torch.ones(2)] * 6, batch_size=6):
        with session.step():
            optimizer.zero_grad()
            trained(batch).sum().backward()
            if MODE == "own error" and NAME == "a" and session.committed_steps == 5:
                raise RuntimeError("gloo: Connection closed by peer, says the script")
            optimizer.step()
            if MODE.endswith("after all-reduce"):
                mark(f"stepped {session.committed_steps}")
                time.sleep(2.0 if session.committed_steps == 5 else 0.02)  # time for the test to kill another process
                dist.all_reduce(torch.ones(1))
                if scheduler is not None:
                    scheduler.step()
        time.sleep(0.005)
    if MODE == "evaluate":
        found.append(session.evaluate(lambda: accuracy(session.committed_steps)))
        session.values.update(evaluated=session.values.get("evaluated", 0) + (found[-1] is not None))
    if MODE == "evaluate in a loop":
        while (result := session.evaluate(lambda: accuracy(session.committed_steps))) is None:
            pass
        found.append(result)
    assert model.training
    mark(f"committed {session.committed_steps}")
facts = {"committed": session.committed_steps, "found": found, "weight": model.weight.tolist()}
pathlib.Path(f"{os.environ['OUTPUT']}.json").write_text(json.dumps({**facts, "values": session.values}))
