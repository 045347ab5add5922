"""Trains an ImageNet classifier with DistributedDataParallel while worker pods come and go.

    elasticrun --standalone --nproc-per-node 2 train.py --dummy        # no data needed
    kubectl apply -k .

It is the usual script for torchvision's models except for the lines marked (1) to (4): what a script needs to be
elastic.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torchvision
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training import checkpoint_wanted, load_checkpoint, report_progress, save_checkpoint
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision import transforms


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="/data/imagenet", help="folder with a subfolder train/, one folder per class")
    parser.add_argument("--dummy", action="store_true", help="random images instead of --data")
    parser.add_argument("--dummy-images", type=int, default=1_281_167, help="how many random images")
    parser.add_argument("--image-size", type=int, default=224, help="pixels")
    parser.add_argument("--arch", default="resnet50", help="a model of torchvision.models")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="images per step, of all workers together")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--loaders", type=int, default=0, help="data loading processes per worker process")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps")
    parser.add_argument(
        "--checkpoint-dir", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"), help="folder"
    )
    return parser.parse_args()


def make_dataset(arguments: argparse.Namespace) -> torchvision.datasets.VisionDataset:
    size = arguments.image_size
    if arguments.dummy:
        return torchvision.datasets.FakeData(arguments.dummy_images, (3, size, size), 1000, transforms.ToTensor())
    steps = [
        transforms.RandomResizedCrop(size),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    ]
    return torchvision.datasets.ImageFolder(os.path.join(arguments.data, "train"), transforms.Compose(steps))


def main() -> None:
    arguments = parse_arguments()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = torchvision.models.get_model(arguments.arch, num_classes=1000).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    dataset = make_dataset(arguments)
    sampler = ElasticDistributedSampler(dataset)  # (1) distributes the rest of an epoch over the current workers
    step = 0

    found = [load_checkpoint(arguments.checkpoint_dir) if rank == 0 else None]
    dist.broadcast_object_list(found)  # (2) every worker continues from the same checkpoint, at any number of workers
    if found[0] is not None:
        state = found[0]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        sampler.load_state_dict(state["sampler"])
        step = state["step"]
    if rank == 0:
        print(f"begins after step={step} in epoch={sampler.epoch} with {world} workers", flush=True)

    parallel = DistributedDataParallel(model)
    batches = sampler.batch_sampler(arguments.batch_size)  # (3) the batch size is that of all workers together
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=arguments.loaders, pin_memory=cuda)
    for epoch in range(sampler.epoch, arguments.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = cross_entropy(parallel(images.to(device)), labels.to(device)) * sampler.loss_weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sampler.advance()
            step += 1
            if rank == 0:
                report_progress(step, loss=loss.item())
            # (4) A crash repeats the steps since the last checkpoint; a join, a resize or a drain repeats none.
            if (checkpoint_wanted() or step % arguments.checkpoint_every == 0) and rank == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "sampler": sampler.state_dict(),
                    "step": step,
                }
                save_checkpoint(arguments.checkpoint_dir, state)
        scheduler.step()
    if rank == 0:
        print(f"finished step={step} with {world} workers", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
