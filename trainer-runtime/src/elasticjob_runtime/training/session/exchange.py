"""What ranks tell each other between two steps, before a batch."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.feed import AnyOrder, differing
from elasticjob_runtime.training.session.interruption import OVER, OverError
from elasticjob_runtime.training.session.replicas import Replicas
from elasticjob_runtime.training.session.steps import Steps
from elasticjob_runtime.training.session.world import SessionError
from elasticjob_runtime.training.sharded import ranks

T = TypeVar("T")


class Exchange:
    """See `stream.Ranks`."""

    def __init__(self, steps: Steps, engine: Engine | None, replicas: Replicas | None) -> None:
        """engine: None if nothing interrupts it."""
        self._steps, self._engine, self._replicas = steps, engine, replicas
        self.world = 0

    def meet(self, epoch: int, order: AnyOrder) -> tuple[int, bool]:
        """The latest epoch of all ranks, and whether all are in that one with the same data in the same order. One
        message for both: each new world begins with it, and all wait for it."""
        digest = _digest(order)
        own = [epoch, -epoch, digest, -digest]
        found = self.largest(own)
        return found[0], found == own

    def compare(self, order: AnyOrder, *, trained: bool) -> None:
        """Returns if all ranks take their batches from the same data in the same order. Otherwise, those that do not
        take them as the first one with `trained` does raise SessionError, and the others OverError: they go on without
        them. Where nothing can go on without some, all raise SessionError."""
        self._steps.exchange(functools.partial(self._compare, order, trained))

    def _compare(self, order: AnyOrder, trained: bool) -> None:
        digest = _digest(order)
        if self.largest([digest, -digest]) == [digest, -digest]:
            return
        found = self.gather((trained, order))
        first = next((of_rank for has_trained, of_rank in found if has_trained), found[0][1])
        kind = "rank" if self._replicas is None else "replica"
        if order == first and self._engine is not None:
            raise OverError(f"another {kind} was given other data")
        who = f"another {kind}" if order == first else f"this {kind}"
        other = next(of_rank for _, of_rank in found if of_rank != first) if order == first else order
        raise SessionError(
            f"{who} was given other data than the other {kind}s: {differing(other, first)}. All {kind}s must call "
            "session.batches() or session.stream() with the same arguments"
        )

    def largest(self, numbers: Sequence[int]) -> list[int]:
        if self._replicas is not None:
            return self._steps.exchange(functools.partial(self._replicas.largest, numbers))
        if ranks.size() == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64, device=_device())
        self._steps.exchange(functools.partial(self._reduce, tensor))
        return tensor.tolist()

    def gather(self, value: T) -> list[T]:
        if self._replicas is not None:
            return self._steps.exchange(functools.partial(self._replicas.gather, value))
        if ranks.size() == 1:
            return [value]
        if self._engine is None:
            return ranks.gather(value)
        interruption = self._engine.interruption

        def here() -> list[T]:
            if interruption.over:
                raise OverError(OVER)
            return ranks.gather(value)

        return self._steps.exchange(lambda: interruption.run(here))

    def _reduce(self, tensor: torch.Tensor) -> None:
        if self._engine is None:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        elif tensor.is_cpu:
            self._engine.wait(_begin(tensor))
        else:
            self._engine.communicate(lambda: _begin(tensor).get_future()).wait()


def _digest(order: AnyOrder) -> int:
    return int.from_bytes(hashlib.blake2b(repr(order).encode(), digest_size=7).digest(), "big")


def _begin(tensor: torch.Tensor) -> Any:
    return dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)


def _device() -> torch.device:
    """Where tensors have to be that the default process group can exchange."""
    backend = dist.get_backend_config()
    return torch.device("cpu") if "gloo" in backend else torch.device("cuda", torch.cuda.current_device())
