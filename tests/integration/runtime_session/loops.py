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

LATE = {"ends an epoch": 10, "breaks": 7, "evaluates in an epoch": 5}
"""The step of which some processes have the decision of the first one, and others have not, when one is lost."""


def mark(what: str) -> None:
    """For the test, which waits until this process is there."""
    with pathlib.Path(f"{OUTPUT}.marks").open("a") as marks:
        marks.write(f"{what}\n")


def await_decision(*, late: bool) -> None:
    """Of rank 0, which goes on before the others have it. late: b is, once."""
    if late and NAME == "b" and not pathlib.Path(f"{OUTPUT}.late").exists():
        pathlib.Path(f"{OUTPUT}.late").touch()
        mark("late")
        time.sleep(1.5)
    dist.broadcast(torch.ones(1), 0)


def attack() -> list[torch.Tensor]:
    """As the usual code of adversarial training does it. Returns the parameters before."""
    before = [parameter.data.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad)
    return before


def train(batch: torch.Tensor) -> None:
    """The backward passes of KIND; c is lost in the 11th step."""
    trained(batch).square().mean().backward()
    before = attack() if KIND == "adversarial" else []
    model.requires_grad_(KIND != "freezes")
    if KIND in {"adversarial", "freezes", "goes on after errors"} and session.committed_steps == 10:
        mark("in step 11")
        time.sleep(1.0)
    if KIND == "freezes":
        dist.all_reduce(torch.ones(1))
    if KIND in {"adversarial", "goes on after errors"}:
        trained(batch).square().mean().backward()
    for parameter, value in zip(model.parameters(), before, strict=bool(before)):
        parameter.data = value


def try_to_train(batch: torch.Tensor) -> None:
    try:
        train(batch)
        optimizer.step()
    except RuntimeError as error:
        print("this batch is left out:", error)


def step(batch: torch.Tensor) -> None:
    with session.step():
        if KIND == "scheduler first":
            scheduler.step()
        if KIND == "scheduler first" and session.committed_steps == 10:
            mark("in step 11")
            time.sleep(1.0)  # time for the test to kill another process
        optimizer.zero_grad()
        if KIND == "goes on after errors":
            try_to_train(batch)
            return
        train(batch)
        if KIND in LATE:
            await_decision(late=session.committed_steps == LATE[KIND] - 1)
        optimizer.step()
        model.requires_grad_(True)
        if KIND == "ends an epoch":
            session.values.update({name: session.values.get(name, 0) + 1 for name in ("sum", "count")})
        time.sleep(0.01)
    mark(f"committed {session.committed_steps}")


def evaluate() -> float:
    mark(f"evaluates after {session.committed_steps}")
    if session.committed_steps in {5, 7} and pathlib.Path(f"{OUTPUT}.marks").read_text().count("evaluates after") == 1:
        time.sleep(1.0)  # time for the test to kill another process
    if KIND == "evaluates while one joins":
        await_decision(late=session.committed_steps == 10)  # and all wait for b
    total = torch.ones(1)
    dist.all_reduce(total)
    if KIND == "evaluates after an epoch":
        await_decision(late=session.committed_steps == 10)
    return float(total)


def end_epoch() -> None:
    """What is done once for each epoch."""
    scheduler.step()
    session.values["epochs"] = session.values.get("epochs", 0) + 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    if KIND == "ends an epoch":
        print("mean", session.values["sum"] / session.values["count"])
        session.values.update(sum=0, count=0)


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
        if KIND == "evaluates in an epoch" and session.committed_steps % 5 == 0:
            session.evaluate(evaluate)
            scheduler.step()
        if KIND == "breaks" and session.committed_steps == 7 * (epoch + 1):
            break
        if "DIES" in os.environ and session.committed_steps == 20:
            os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "break before a step":
        found.append(session.evaluate(evaluate))
    if KIND in {"breaks", "evaluates after an epoch", "evaluates while one joins"}:
        session.evaluate(evaluate)
        end_epoch()
    if KIND == "ends an epoch":
        found.append(session.evaluate(evaluate))
    if KIND in {"each epoch", "all epochs", "ends an epoch"}:
        end_epoch()
state = {"model": model.state_dict(), "scheduler": scheduler.state_dict(), "values": dict(session.values)}
torch.save(state, f"{OUTPUT}.pt")
facts = {"committed": session.committed_steps, "lr": optimizer.param_groups[0]["lr"], "found": found}
pathlib.Path(f"{OUTPUT}.json").write_text(json.dumps(facts))
