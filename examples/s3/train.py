"""Trains with checkpoints in an S3 bucket: no volume that all nodes can mount is needed.

    AWS_REGION=eu-west-1 elasticrun --standalone --nproc-per-node 2 train.py --checkpoint s3://my-bucket/run.pt
    kubectl apply -k .

The lines marked (1) and (2) are what differs from checkpoints in a folder.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from s3torchconnector import S3Checkpoint, S3ClientConfig
from s3torchconnectorclient import S3Exception
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--checkpoint", required=True, help="URI of an object: s3://BUCKET/KEY")
    parser.add_argument("--endpoint", help="URL of another S3 service than that of AWS")
    arguments = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    rank, world = dist.get_rank(), dist.get_world_size()
    config = S3ClientConfig(force_path_style=arguments.endpoint is not None)
    bucket = S3Checkpoint(os.environ["AWS_REGION"], endpoint=arguments.endpoint, s3client_config=config)

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = [load(bucket, arguments.checkpoint) if rank == 0 else None]
    dist.broadcast_object_list(found)  # every worker continues from the same checkpoint
    first = 0
    if found[0] is not None:
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
        first = found[0]["step"]
    if rank == 0:
        print(f"begins after step={first} with {world} workers", flush=True)

    parallel = DistributedDataParallel(model)
    for step in range(first + 1, arguments.steps + 1):
        inputs = torch.randn(32, 8, device=device)
        loss = mse_loss(parallel(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % arguments.save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            with bucket.writer(arguments.checkpoint) as writer:
                torch.save(state, writer)  # (1) the object is replaced in one step: a crash leaves the old one
    if rank == 0:
        print(f"finished step={arguments.steps} with {world} workers", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def load(bucket: S3Checkpoint, uri: str) -> dict[str, Any] | None:
    """(2) The state, or None if there is no object yet."""
    try:
        with bucket.reader(uri) as reader:
            state: dict[str, Any] = torch.load(reader, map_location="cpu", weights_only=True)
            return state
    except S3Exception as error:
        if "NoSuchKey" in str(error) or "does not exist" in str(error):
            return None
        raise


if __name__ == "__main__":
    main()
