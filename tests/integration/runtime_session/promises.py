"""Trains one of `KINDS`, by the environment variable KIND, with a session. Two ranks, so that sums of floating-point
numbers do not depend on their order."""

from __future__ import annotations

import faulthandler
import json
import math
import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from elasticjob_runtime.training.session.values import Values
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

SAMPLES, BATCH, WIDTH = 240, 8, 6
Step = Callable[[torch.Tensor, torch.Tensor], None]


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.randn(WIDTH + 1, generator=torch.Generator().manual_seed(index))
        return values[:WIDTH], values[WIDTH:]


class Branches(nn.Module):
    """Uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8), nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor, second: bool) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.tanh(self.second(inputs) if second else self.first(inputs)))
        return result


def network(*, norm: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 1))


def wrap(module: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module, **{"bucket_cap_mb": 0.0001, **options})


def simple(ddp: Any, optimizer: torch.optim.Optimizer) -> Step:
    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(inputs), targets).backward()
        optimizer.step()

    return step


def momentum() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    return {"model": ddp, "optimizer": optimizer}, simple(ddp, optimizer)


def closure() -> tuple[dict[str, Any], Step]:
    """Communicates inside of the optimizer's step."""
    ddp = wrap(network())
    optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.1, max_iter=3)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = nn.functional.mse_loss(ddp(inputs), targets)
            value.backward()
            dist.all_reduce(value.detach_())
            return value

        optimizer.step(loss)

    return {"model": ddp, "optimizer": optimizer}, step


def two_models() -> tuple[dict[str, Any], Step]:
    """Communicates between the steps of two optimizers."""
    first, second = wrap(network()), wrap(nn.Linear(1, 1))
    one = torch.optim.Adam(first.parameters(), lr=0.01)
    two = torch.optim.RMSprop(second.parameters(), lr=0.01)
    decay = torch.optim.lr_scheduler.ExponentialLR(one, 0.99)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        for ddp, optimizer, values in ((first, one, inputs), (second, two, targets)):
            optimizer.zero_grad()
            nn.functional.mse_loss(ddp(values), targets).backward()
            optimizer.step()
            if optimizer is one:
                decay.step()
                time.sleep(0.005)

    return {"model": first, "optimizer": one, "second": second, "two": two, "decay": decay}, step


def scheduler() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.05)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        simple(ddp, optimizer)(inputs, targets)
        cosine.step()

    return {"model": ddp, "optimizer": optimizer, "scheduler": cosine}, step


def accumulation() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network())
    optimizer = torch.optim.Adagrad(ddp.parameters())

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        half = len(inputs) // 2
        with ddp.no_sync():
            nn.functional.mse_loss(ddp(inputs[:half]), targets[:half]).backward()
        nn.functional.mse_loss(ddp(inputs[half:]), targets[half:]).backward()
        optimizer.step()

    return {"model": ddp, "optimizer": optimizer}, step


def scaled() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network())
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", growth_interval=7)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(ddp(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return {"model": ddp, "optimizer": optimizer, "scaler": scaler}, step


def averaged() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network())
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    ema = torch.optim.swa_utils.AveragedModel(
        ddp.module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=False
    )

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        simple(ddp, optimizer)(inputs, targets)
        ema.update_parameters(ddp.module)

    return {"model": ddp, "optimizer": optimizer, "ema": ema}, step


def batch_norm() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network(norm=True))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    return {"model": ddp, "optimizer": optimizer}, simple(ddp, optimizer)


def frozen() -> tuple[dict[str, Any], Step]:
    module = network()
    module[0].requires_grad_(False)
    ddp = wrap(module)
    optimizer = torch.optim.Adam([parameter for parameter in ddp.parameters() if parameter.requires_grad], lr=0.01)
    return {"model": ddp, "optimizer": optimizer}, simple(ddp, optimizer)


def unused() -> tuple[dict[str, Any], Step]:
    ddp = wrap(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        steps = int(optimizer.state[ddp.module.last.weight]["step"]) if optimizer.state else 0
        nn.functional.mse_loss(ddp(inputs, second=steps % 2 == 0), targets).backward()
        optimizer.step()

    return {"model": ddp, "optimizer": optimizer}, step


def static() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network(), static_graph=True)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    return {"model": ddp, "optimizer": optimizer}, simple(ddp, optimizer)


def compiled() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network(), bucket_cap_mb=25)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    model = torch.compile(ddp, backend="aot_eager")
    return {"model": model, "optimizer": optimizer}, simple(model, optimizer)


def hook() -> tuple[dict[str, Any], Step]:
    ddp = wrap(network())
    ddp.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    return {"model": ddp, "optimizer": optimizer}, simple(ddp, optimizer)


def own_values() -> tuple[dict[str, Any], Step]:
    """The script's own values, changed in the step, in place; those of `after_step` between two steps."""
    parts, train = momentum()

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        values = SESSIONS[0].values
        values.setdefault("steps", []).append(len(values["steps"]))
        train(inputs, targets)
        weights = parts["model"].module.state_dict()
        average = values.setdefault("ema", {name: weight.clone() for name, weight in weights.items()})
        for name, weight in weights.items():
            average[name].lerp_(weight, 0.1)

    return parts, step


def after_step(values: Values, parts: dict[str, Any], step: int) -> None:
    norm = float(sum(parameter.square().sum() for parameter in parts["model"].parameters()))
    values["checks"] = values.get("checks", 0) + 1  # also after a step that was interrupted, and then again
    if norm < values.get("best", math.inf):
        values.update(best=norm, best_step=step, best_model=parts["model"].module.state_dict())


SESSIONS: list[ElasticSession] = []


def no_backend() -> tuple[dict[str, Any], Step]:
    """`init_process_group` without a backend."""
    return momentum()


KINDS = {
    item.__name__: item
    for item in (
        momentum, closure, two_models, scheduler, accumulation, scaled, averaged, batch_norm, frozen, unused, static,
        compiled, hook, own_values, no_backend,
    )
}  # fmt: skip


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    torch.manual_seed(ord(os.environ["WORKER_NAME"]))  # only rank 0's first state counts
    backend = None if os.environ["KIND"] == "no_backend" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    parts, step = KINDS[os.environ["KIND"]]()
    if os.environ["KIND"] == "compiled":
        _compile(parts["model"])  # now: later, all other processes would wait for it
    session = ElasticSession(**parts)
    SESSIONS.append(session)
    output = os.environ["OUTPUT"]
    with pathlib.Path(f"{output}.steps").open("a") as steps:
        for epoch in range(session.epoch, 2):
            for inputs, targets in session.batches(Samples(), batch_size=BATCH, epoch=epoch):
                with session.step():
                    time.sleep(float(os.environ["STEP_SECONDS"]))
                    step(inputs, targets)
                if os.environ["KIND"] == "own_values":
                    after_step(session.values, parts, session.committed_steps)
                steps.write(f"{time.monotonic()} {session.committed_steps} {session.world_size}\n")
                steps.flush()
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**states, "values": {key: session.values[key] for key in sorted(session.values)}}, f"{output}.pt")
    pathlib.Path(f"{output}.json").write_text(json.dumps({"committed": session.committed_steps}))


def _compile(model: Any) -> None:
    model(torch.zeros(BATCH // 2, WIDTH)).sum().backward()
    model.zero_grad()


if __name__ == "__main__":
    main()
