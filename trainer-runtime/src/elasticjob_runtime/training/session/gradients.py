"""How DDP communicates in a session: gradients weighted by samples, and no wait that outlives the world."""

# No `from __future__ import annotations`: DDP checks the hook's annotations, and does not know them as text.

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its __all__
from torch.nn.parallel import DistributedDataParallel

from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.backend import Begin
from elasticjob_runtime.training.session.feed import Share

Communicate = Callable[[Begin], torch.futures.Future[Any]]
"""Begins a collective, and gives a future that also ends with the world: `Engine.communicate`."""


class ShareWeight:
    """A communication hook on each DDP model that has none. It does what DDP does by itself, with the weight as part of
    the factor by which DDP divides, so that its mean over ranks is the mean over samples."""

    def __init__(self, models: Sequence[DistributedDataParallel]) -> None:
        self._factor = 1.0
        for model in models:
            if not torch_private.has_comm_hook(model):
                model.register_comm_hook(self, _reduce)

    def begin(self, share: Share, world_size: int) -> None:
        self._factor = share.weight(world_size) / world_size

    @property
    def factor(self) -> float:
        return self._factor


def _reduce(weight: ShareWeight, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer().mul_(weight.factor)
    work = dist.all_reduce(buffer, async_op=True)
    assert work is not None
    result: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return result


def interruptible(models: Sequence[DistributedDataParallel], communicate: Communicate) -> None:
    """Makes all communication of `models` end with the world.

    Call it once. What DDP waits for by itself are the futures of its communication hooks, and buffers.
    """
    for model in models:
        torch_private.wrap_hooks(model, lambda hook: _Interruptible(hook, communicate))
        torch_private.broadcast_buffers_with(model, lambda tensors, source: _broadcast(tensors, source, communicate))


class _Interruptible:
    def __init__(self, hook: Callable[[Any, GradBucket], Any], communicate: Communicate) -> None:
        self._hook, self._communicate = hook, communicate

    def __call__(self, state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return self._communicate(lambda: self._hook(state, bucket))


def _broadcast(tensors: Sequence[torch.Tensor], source: int, communicate: Communicate) -> None:
    with torch.no_grad():
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.reshape(-1) for tensor in same])
            communicate(functools.partial(_begin_broadcast, flat, source)).wait()
            for tensor, sent in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.copy_(sent.view_as(tensor))


def _begin_broadcast(tensor: torch.Tensor, source: int) -> torch.futures.Future[Any]:
    work = dist.broadcast(tensor, source, async_op=True)
    assert work is not None
    return work.get_future()
