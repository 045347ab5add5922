"""Before a session begins: whether it can continue in place, and torch warmed up."""

from __future__ import annotations

import torch

from elasticjob_runtime.training import channel
from elasticjob_runtime.training.session.parts import Parts


def refusal(parts: Parts, *, backend: str, groups: int) -> str:
    """Why this training cannot continue in place, and restarts at every change instead. Empty: nothing is against it.
    backend: of the default process group, as `get_backend_config` returns it ("cpu:gloo,cuda:nccl"; `get_backend` says
    "undefined" if the script names none), "" without one; groups: of this process."""
    if parts.are_sharded:
        return (
            "the model is sharded (FSDP), and no process has the state of a lost one; it continues from the latest "
            "snapshot in the memory of the agents"
        )
    if any(type(each).__name__ == "ZeroRedundancyOptimizer" for each in parts.optimizers):
        return "the optimizer's state is sharded (ZeroRedundancyOptimizer), and no process has that of a lost one"
    if not parts.ddp:
        return "no model of the session is in DistributedDataParallel"
    for module in parts.modules:
        if any(isinstance(each, torch.nn.SyncBatchNorm) for each in module.modules()):
            return (
                "the model has SyncBatchNorm, which communicates inside of the forward pass; use BatchNorm, or layers "
                "that do not depend on the batch (GroupNorm)"
            )
    if "nccl" in backend:
        return "the process group uses NCCL, which is not supported yet"
    if groups > 1:
        return "the script has process groups of its own, which would end with each change"
    return ""


def warm_up() -> None:
    """torch initializes much at the first step of a process, for which all others of its world would wait."""
    parameter = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    state = torch.get_rng_state()
    (parameter @ torch.ones(8, 8)).square().mean().backward()
    with channel.muted():  # the hook that reports the first step
        optimizer.step()
    torch.set_rng_state(state)
