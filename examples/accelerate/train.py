"""Trains with Hugging Face Accelerate while worker pods come and go.

    elasticrun --standalone --nproc-per-node 2 train.py
    kubectl apply -k .

The lines marked (1) to (3) are what an Accelerate script needs to be elastic.
"""

from __future__ import annotations

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training import load_checkpoint, report_progress, save_checkpoint
from torch.nn.functional import mse_loss


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, of all workers together")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument(
        "--checkpoint-dir", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"), help="folder"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    cuda = torch.cuda.is_available()
    backend = InitProcessGroupKwargs(backend="nccl" if cuda else "gloo")  # or Accelerate may choose MPI on CPUs
    accelerator = Accelerator(cpu=not cuda, kwargs_handlers=[backend])
    torch.manual_seed(0)
    inputs = torch.randn(arguments.samples, 8)
    targets = inputs @ torch.randn(8, 1)
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model, optimizer = accelerator.prepare(network, torch.optim.Adam(network.parameters(), lr=1e-3))
    sampler = ElasticDistributedSampler(inputs)  # (1) distributes the rest of an epoch over the current workers
    step = 0

    found = [load_checkpoint(arguments.checkpoint_dir) if accelerator.is_main_process else None]
    broadcast_object_list(found)  # (2) every worker continues from the same checkpoint, at any number of workers
    if found[0] is not None:
        state = found[0]
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        step = state["step"]
    if accelerator.is_main_process:  # accelerator.print would print once for each worker pod
        print(f"begins after step={step} with {accelerator.num_processes} workers", flush=True)

    for epoch in range(sampler.epoch, arguments.epochs):
        sampler.set_epoch(epoch)
        for indices in sampler.batches(arguments.batch_size):
            samples = min(arguments.batch_size, arguments.samples - sampler.consumed)
            loss = mse_loss(
                model(inputs[indices].to(accelerator.device)), targets[indices].to(accelerator.device), reduction="sum"
            )
            optimizer.zero_grad()
            # DDP averages over the workers: this makes it the mean over the batch, also if shares differ by one
            accelerator.backward(loss * accelerator.num_processes / samples)
            optimizer.step()
            sampler.advance(samples)
            step += 1
            if accelerator.is_main_process:
                report_progress(step, loss=loss.item() / max(1, len(indices)))
                if step % arguments.save_every == 0:  # (3) what is lost after a crash
                    state = {
                        "model": network.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "sampler": sampler.state_dict(),
                        "step": step,
                    }
                    save_checkpoint(arguments.checkpoint_dir, state)
    if accelerator.is_main_process:
        print(f"finished step={step} with {accelerator.num_processes} workers", flush=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
