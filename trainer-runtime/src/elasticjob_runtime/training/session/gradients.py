"""How DDP communicates in a session: gradients weighted by samples, and no wait that outlives the world."""

# No `from __future__ import annotations`: DDP checks the hook's annotations, and does not know them as text.

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its __all__
from torch.nn.parallel import DistributedDataParallel

from elasticjob_runtime.training.session import torch_reducer
from elasticjob_runtime.training.session.backend import Begin
from elasticjob_runtime.training.session.feed import Share

Communicate = Callable[[Begin], torch.futures.Future[Any]]
"""Begins a collective, and gives a future that also ends with the world: `Engine.communicate`."""
Wait = Callable[[Any], Any]
"""Waits for the work of a collective on the CPU, or until the world ends: `Engine.wait`."""

WAIT_TOGETHER = 8 << 20
"""Bytes of gradients for which a step waits once all buckets are on their way. After more, DDP waits for each bucket,
and copies it back while the next ones are on their way; that costs a future, and a call of Python in gloo's thread."""


class ShareWeight:
    """A communication hook on each DDP model that has none. It does what DDP does by itself, with the weight as part of
    the factor by which DDP divides, so that its mean over ranks is the mean over samples."""

    def __init__(self, models: Sequence[DistributedDataParallel]) -> None:
        self._factor = 1.0
        self.communicate: Communicate = lambda begin: begin()
        self.wait: Wait = lambda work: work.wait()
        for model in models:
            if not torch_reducer.has_comm_hook(model):
                model.register_comm_hook(_Reduction(self), _reduce)

    def begin(self, share: Share, world_size: int) -> None:
        self._factor = share.weight(world_size) / world_size

    @property
    def factor(self) -> float:
        return self._factor


class _Reduction:
    """Of the gradients of one model."""

    def __init__(self, weight: ShareWeight) -> None:
        self._weight = weight
        self._begun: list[Any] = []
        """Works that the last bucket waits for."""
        self._size = 0
        """Bytes of this step's buckets so far."""

    def begin(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:  # the previous step may have been interrupted
            self._begun, self._size = [], 0
        buffer = bucket.buffer().mul_(self._weight.factor)
        self._size += buffer.nbytes
        if buffer.is_cpu and self._size <= WAIT_TOGETHER:
            assert dist.group.WORLD is not None
            self._begun.append(dist.group.WORLD.allreduce([buffer]))  # what dist.all_reduce does besides takes 0.1 ms
            result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            result.set_result(buffer)  # DDP looks at it after the hook of the last bucket
        else:
            result = self._weight.communicate(functools.partial(_begin_all_reduce, buffer))
        if bucket.is_last():
            for work in self._begun:
                self._weight.wait(work)
            self._begun = []
        return result


def _reduce(reduction: _Reduction, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return reduction.begin(bucket)


def interruptible(
    models: Sequence[DistributedDataParallel], weight: ShareWeight, communicate: Communicate, wait: Wait
) -> None:
    """Makes all communication of `models` end with the world.

    Call it once. What DDP waits for by itself are the futures of its communication hooks, buffers, and what its reducer
    exchanges besides gradients.
    """
    weight.communicate, weight.wait = communicate, wait
    for model in models:
        torch_reducer.wrap_hooks(model, lambda hook: hook if hook is _reduce else _Interruptible(hook, communicate))
        torch_reducer.reduce_with(model, wait)
        torch_reducer.broadcast_buffers_with(
            model, lambda tensors, source: _broadcast(tensors, source, communicate, wait)
        )


class _Interruptible:
    def __init__(self, hook: Callable[[Any, GradBucket], Any], communicate: Communicate) -> None:
        self._hook, self._communicate = hook, communicate

    def __call__(self, state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return self._communicate(lambda: self._hook(state, bucket))


def _broadcast(tensors: Sequence[torch.Tensor], source: int, communicate: Communicate, wait: Wait) -> None:
    with torch.no_grad():
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.reshape(-1) for tensor in same])
            if flat.is_cpu:
                wait(dist.broadcast(flat, source, async_op=True))
            else:
                communicate(functools.partial(_begin_broadcast, flat, source)).wait()
            for tensor, sent in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.copy_(sent.view_as(tensor))


def _begin_all_reduce(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    result: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return result


def _begin_broadcast(tensor: torch.Tensor, source: int) -> torch.futures.Future[Any]:
    work = dist.broadcast(tensor, source, async_op=True)
    assert work is not None
    return work.get_future()
