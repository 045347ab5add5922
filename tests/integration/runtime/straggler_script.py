"""An ordinary training, which ends when its folder has a file `finish`. The file `slow` there says which rank is slow,
and how: in its `loader`, or `backward`."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

BY_HAND, FOLDER = sys.argv[1] == "by hand", pathlib.Path(sys.argv[2])
SECONDS = 0.03


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, data: torch.Tensor) -> torch.Tensor:
        return data.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(SECONDS)
        return gradient


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.first, self.last = torch.nn.Linear(64, 256), torch.nn.Linear(256, 8)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        hidden = self.first(data).relu()
        result: torch.Tensor = self.last(Slow.apply(hidden) if self.slow else hidden)
        return result


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    network = Network()
    model: torch.nn.Module = network
    if not BY_HAND:
        model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.001)
    optimizer = torch.optim.AdamW(model.parameters())
    pid = FOLDER / f"pid-{dist.get_rank()}"
    pid.with_suffix(".new").write_text(str(os.getpid()))
    pid.with_suffix(".new").rename(pid)  # whole at once: the test reads it as soon as it exists
    finish = torch.zeros(1)
    while not finish:
        rank, how = (FOLDER / "slow").read_text().split()
        slow = int(rank) == dist.get_rank()
        network.slow = slow and how == "backward"
        if slow and how == "loader":
            time.sleep(SECONDS)
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            torch.ones(64, 64) @ torch.ones(64, 64)
        model(torch.ones(16, 64)).sum().backward()
        if BY_HAND:
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        finish.fill_((FOLDER / "finish").exists())
        dist.all_reduce(finish)


main()
