"""Trains with a session in a loop as KIND says: what scripts do before, between and after steps.

Environment: KIND, CHECKPOINTS (a folder), DIES (after the last step of the second epoch); WORKER_NAME and OUTPUT, as
for `driver`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch.nn.parallel import DistributedDataParallel

KIND, NAME, OUTPUT = os.environ["KIND"], os.environ["WORKER_NAME"], os.environ["OUTPUT"]
SAMPLES, BATCH, EPOCHS = 60, 6, 6
DATA = [torch.tensor([index / SAMPLES, 1.0], dtype=torch.float64) for index in range(SAMPLES)]

faulthandler.register(signal.SIGUSR1)
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
model = torch.nn.Linear(2, 1).double()
trained = DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
session = ElasticSession(model=trained, optimizer=optimizer, scheduler=scheduler)
if folder := os.environ.get("CHECKPOINTS"):
    session.checkpoint(folder, every=10)
found: list[float | None] = []


def mark(what: str) -> None:
    """For the test, which waits until this process is there."""
    with pathlib.Path(f"{OUTPUT}.marks").open("a") as marks:
        marks.write(f"{what}\n")


def step(batch: torch.Tensor) -> None:
    with session.step():
        if KIND == "scheduler first":
            scheduler.step()
        if KIND == "scheduler first" and session.committed_steps == 10:
            mark("in step 11")
            time.sleep(1.0)  # time for the test to kill another process
        optimizer.zero_grad()
        trained(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
    mark(f"committed {session.committed_steps}")


def evaluate() -> float:
    mark(f"evaluates after {session.committed_steps}")
    time.sleep(0.3)
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def scale(changed: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * changed.world_size


if KIND == "scaled":
    session.on_change(scale)
for epoch in range(EPOCHS) if KIND == "all epochs" else range(session.epoch, EPOCHS):
    size = 3 if KIND == "other batches" and NAME == "c" else BATCH
    for batch in session.batches(DATA, batch_size=size, epoch=epoch):
        if KIND == "break before a step" and session.committed_steps == 7 * (epoch + 1):
            break
        if KIND == "evaluate before a step" and session.committed_steps == 5:
            found.append(session.evaluate(evaluate))
        step(batch)
        if "DIES" in os.environ and session.committed_steps == 20:
            os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "break before a step":
        found.append(session.evaluate(evaluate))
    if KIND in {"each epoch", "all epochs"}:
        scheduler.step()
        session.values["epochs"] = session.values.get("epochs", 0) + 1
state = {"model": model.state_dict(), "scheduler": scheduler.state_dict(), "values": dict(session.values)}
torch.save(state, f"{OUTPUT}.pt")
facts = {"committed": session.committed_steps, "lr": optimizer.param_groups[0]["lr"], "found": found}
pathlib.Path(f"{OUTPUT}.json").write_text(json.dumps(facts))
