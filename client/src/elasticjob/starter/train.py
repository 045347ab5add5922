"""A small elastic training script: replace the model and the data with yours.

python train.py                              # one process, on your machine
elasticrun --nproc-per-node 2 train.py       # two processes; torchrun takes the same flags
elasticjob submit -f job.yaml --follow       # a cluster

Three things make it elastic, each marked with its number below: it continues from the newest checkpoint, the sampler
shares out what is left of the data among the current workers, and it saves every few steps.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training import load_checkpoint, report_progress, save_checkpoint
from torch.nn.parallel import DistributedDataParallel

EPOCHS = int(os.environ.get("EPOCHS", "20"))
BATCH_SIZE = 64  # of all workers together
CHECKPOINTS = os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints")


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # without a launcher: one process
    os.environ.setdefault("MASTER_PORT", "29500")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo", rank=rank, world_size=world)

    torch.manual_seed(0)
    inputs = torch.randn(4096, 16, device=device)
    targets = inputs.sum(dim=1, keepdim=True)
    model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = ElasticDistributedSampler(targets, world, rank)
    step = 0

    found = [load_checkpoint(CHECKPOINTS) if rank == 0 else None]  # 1: all ranks continue from the same step
    dist.broadcast_object_list(found)
    if found[0] is not None:
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
        sampler.load_state_dict(found[0]["sampler"])
        step = found[0]["step"]

    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for indices in sampler.batches(BATCH_SIZE):  # 2: this rank's share of a batch of all workers
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[indices]), targets[indices])
            loss.backward()
            optimizer.step()
            step += 1
            sampler.advance(min(BATCH_SIZE, len(targets) - sampler.consumed))
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch}, step {step}, {world} workers, loss {loss.item():.4f}", flush=True)
                report_progress(step, loss=loss.item())
            if rank == 0 and step % 50 == 0:  # 3: often enough that little is lost
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save_checkpoint(CHECKPOINTS, {**state, "sampler": sampler.state_dict(), "step": step})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
