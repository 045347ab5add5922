"""Trains with a session. All sums of gradients are exact, so that the weights after a run are the same, bit by bit, in
whatever worlds it took place: a sample that is lost, seen twice, weighted wrongly, or used after another one shows.

Environment: OUTPUT (folder's prefix for what it writes), SAMPLES, BATCH, EPOCHS, LOADERS, STEP_SECONDS; SLOW (a file)
and SLOW_SECONDS (instead of STEP_SECONDS while that file exists); DEVICE and BACKEND (cuda:0, nccl); SNAPSHOT_EVERY
(steps); HOLD (a file: while it exists, the script waits before its session), CRASH (a file: while it exists, the script
fails as it starts), CUT (a file: while it exists, each step cuts the connections to other processes).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pathlib
import signal
import socket
import time
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from elasticjob_runtime.training.memory import Pace
from torch.nn.parallel import DistributedDataParallel

WIDTH = 8


def setting(name: str, default: str) -> float:
    return float(os.environ.get(name, default))


SLOW = os.environ.get("SLOW", "")
DEVICE, BACKEND = os.environ.get("DEVICE", "cpu"), os.environ.get("BACKEND", "gloo")
SAMPLES, BATCH = int(setting("SAMPLES", "512")), int(setting("BATCH", "16"))


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, *((index * k) % 13 for k in range(1, WIDTH + 1))])


class Ballast(torch.nn.Module):
    """A large state that is not trained: BALLAST MiB, of numbers that differ between processes."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(int(setting("BALLAST", "0"))):
            part = torch.full((2**17,), float(os.getpid()), dtype=torch.float64)
            self.register_parameter(f"part_{number}", torch.nn.Parameter(part, requires_grad=False))

    @property
    def numbers(self) -> list[float]:
        return sorted({number for part in self.parameters() for number in part.unique().tolist()})


class Model(torch.nn.Module):
    """`seen` has minus the number of times that each sample was trained on. `weights` has gradients that depend on the
    weights and the samples, but are whole numbers. `steps` is a buffer, changed in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.weights = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
        self.more = torch.nn.ParameterList(torch.zeros(WIDTH, dtype=torch.float64) for _ in range(3))
        self.ballast = Ballast()
        self.steps: torch.Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The mean over the batch."""
        self.steps += 1
        count = torch.zeros(SAMPLES, dtype=torch.float64, device=batch.device).index_add_(
            0, batch[:, 0], torch.ones(len(batch), dtype=torch.float64, device=batch.device)
        )
        loss = (self.seen * (count / len(batch))).sum()
        for weights in (self.weights, *self.more):
            gradients = torch.remainder(torch.floor(weights * 64).detach() * 3 + batch[:, 1:], 17) - 8
            loss = loss + (weights * (gradients.sum(0) / len(batch))).sum()
        return loss


def cut_links() -> None:
    """As a network that ends connections in the midst of a step, and lets the next ones be made."""
    if not os.path.exists(os.environ.get("CUT", "")):
        return
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as link:
            if link.family == socket.AF_INET and str(link.getpeername()[1]) != os.environ.get("MASTER_PORT"):
                link.shutdown(socket.SHUT_RDWR)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    if interval := int(setting("SNAPSHOT_EVERY", "0")):  # as if each took so long
        setattr(Pace, "interval", interval)  # noqa: B010 mypy
    if DEVICE != "cpu":
        torch.cuda.set_device(DEVICE)
    local_rank = os.environ.get("ELASTICJOB_LOCAL_RANK", "0")
    output = os.environ.get("OUTPUT", "/tmp/session").replace("{local_rank}", local_rank)
    with pathlib.Path(f"{output}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    if "RANK" in os.environ:
        dist.init_process_group(BACKEND)
    elif os.environ.get("ELASTICJOB_IN_PLACE"):
        dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    while os.path.exists(os.environ.get("HOLD", "")):
        time.sleep(0.05)
    if os.path.exists(os.environ.get("CRASH", "")):
        raise RuntimeError("this machine is broken")
    model = Model().to(DEVICE)
    trained = DistributedDataParallel(model, bucket_cap_mb=0.001) if dist.is_initialized() else model
    plain = torch.optim.SGD([model.seen], lr=BATCH)
    adam = torch.optim.AdamW([model.weights, *model.more], lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(adam, 10, gamma=0.9)
    session = ElasticSession(model=trained, optimizer=adam, scheduler=scheduler, plain=plain)
    if "CHECKPOINTS" in os.environ:
        session.checkpoint(os.environ["CHECKPOINTS"], every=int(setting("EVERY", "5")))
    changes: list[float] = []
    session.on_change(lambda session: changes.append(session.world_size))
    with pathlib.Path(f"{output}.steps").open("a") as steps:
        for epoch in range(session.epoch, int(setting("EPOCHS", "2"))):
            for batch in session.batches(
                Samples(), batch_size=BATCH, epoch=epoch, num_workers=int(setting("LOADERS", "0"))
            ):
                with session.step():
                    cut_links()
                    session.values["steps"] = session.values.get("steps", 0) + 1
                    time.sleep(setting("SLOW_SECONDS" if os.path.exists(SLOW) else "STEP_SECONDS", "0"))
                    plain.zero_grad()
                    trained(batch.to(DEVICE)).backward()
                    plain.step()
                    adam.step()
                    adam.zero_grad(set_to_none=False)
                    scheduler.step()
                steps.write(f"{time.monotonic()} {session.committed_steps} {session.world_size}\n")
                steps.flush()
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("ballast")}
    torch.save({"model": state, "adam": adam.state_dict(), "scheduler": scheduler.state_dict()}, f"{output}.pt")
    facts: dict[str, Any] = {
        "rank": session.rank,
        "committed": session.committed_steps,
        "epoch": session.epoch,
        "changes": changes,
    }
    assert session.values["steps"] == session.committed_steps
    facts["ballast"] = model.ballast.numbers
    pathlib.Path(f"{output}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
