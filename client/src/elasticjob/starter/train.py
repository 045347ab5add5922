"""A small elastic training script: replace the model and the data with yours.

python3 train.py                             # one process, on your machine
elasticrun --nproc-per-node 2 train.py       # two processes; torchrun takes the same flags
elasticjob submit -f job.yaml --follow       # a cluster

What makes it elastic is the session, in the numbered lines. When worker processes are lost or join, the others continue
where they are: no step is lost, and all processes agree on what the session holds.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession, report_progress
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

EPOCHS = int(os.environ.get("EPOCHS", "50"))
PATIENCE = 3  # epochs without a better result until training stops
BATCH_SIZE = 64  # of all worker processes together
CHECKPOINTS = Path(os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"))


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # without a launcher: one process
    os.environ.setdefault("MASTER_PORT", "29500")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo", rank=rank, world_size=world)

    torch.manual_seed(0)
    inputs = torch.randn(4608, 16)
    targets = inputs.sin().sum(dim=1, keepdim=True)
    dataset = TensorDataset(inputs[:4096], targets[:4096])
    held_out = TensorDataset(inputs[4096:].to(device), targets[4096:].to(device))
    model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    session = ElasticSession(model=model, optimizer=optimizer)  # 1: give it all that a step changes
    session.checkpoint(CHECKPOINTS, every=200)  # 2: for when all worker pods are lost, or the job is suspended
    session.values.setdefault("best", float("inf"))  # 3: what the script counts must be the same in all processes
    session.values.setdefault("bad", 0)
    session.values.setdefault("average", model.module.state_dict())  # a copy: an average of the weights

    for epoch in range(session.epoch, EPOCHS):
        for x, y in session.batches(dataset, batch_size=BATCH_SIZE, epoch=epoch):  # 4: this process's share
            with session.step():  # 5: undone, and taken again with the others, if a process is lost during it
                loss = mse_loss(model(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                for name, weight in model.module.state_dict().items():
                    session.values["average"][name].lerp_(weight, 0.01)
                step = session.committed_steps + 1
                report_progress(step, loss=loss.item())  # for `elasticjob list`, the history, and hang detection
                if session.is_leader and step % 10 == 0:
                    print(f"epoch {epoch}, step {step}, {session.world_size} processes, loss {loss:.4f}", flush=True)

        error = session.evaluate(lambda: error_of(model.module, held_out))  # None if one joined meanwhile
        if error is not None and error < session.values["best"]:
            session.values.update(best=error, bad=0, model=model.module.state_dict())
        elif error is not None:
            session.values["bad"] += 1
        if session.values["bad"] >= PATIENCE:
            break  # in all processes: they have the same values

    if session.is_leader and "model" in session.values:
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        torch.save(session.values["model"], CHECKPOINTS / "best.pt")
        print(f"finished after step {session.committed_steps}, error {session.values['best']:.4f}", flush=True)


def error_of(module: torch.nn.Module, held_out: TensorDataset) -> float:
    """The same in all processes: each takes its share, and they add up their sums."""
    x, y = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in held_out.tensors)
    with torch.no_grad():
        total = mse_loss(module(x), y, reduction="sum")
    dist.all_reduce(total)
    return total.item() / len(held_out)


if __name__ == "__main__":
    main()
