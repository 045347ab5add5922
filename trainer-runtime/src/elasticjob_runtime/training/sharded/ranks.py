"""What all ranks do together: share values, and fail together. Without a process group, this process is the only rank.

A rank that raises alone leaves the others waiting in the next collective. So each step of a save or a restore ends with
an exchange, after which all ranks continue or all raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from elasticjob_runtime.training.checkpoint import CheckpointError, FencedError

T = TypeVar("T")

_group: Any = None
"""Over which ranks tell each other values; None: the default process group."""


def talk_over_gloo() -> None:
    """From now on, also where the default process group has none: over NCCL, a value would wait for all that is queued
    on the GPU. Collective."""
    global _group  # noqa: PLW0603
    over_nccl = dist.is_initialized() and "gloo" not in dist.get_backend_config()
    _group = dist.new_group(backend="gloo") if over_nccl else None


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value: T) -> list[T]:
    """The values of all ranks, in order. Collective."""
    if size() == 1:
        return [value]
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value, group=_group)
    return values


def lowest(*numbers: int) -> list[int]:
    """Of each of the numbers, the lowest of all ranks. Collective, for a group with gloo. Raises what torch raises if a
    rank is lost."""
    if size() == 1:
        return [int(number) for number in numbers]
    found = torch.tensor(numbers, dtype=torch.int64)
    dist.all_reduce(found, dist.ReduceOp.MIN, group=_group)
    return [int(number) for number in found.tolist()]


def from_first(function: Callable[[], T]) -> T:
    """What `function` returns on rank 0, the only rank that calls it, for all ranks. Collective.

    Raises CheckpointError on all ranks if it fails.
    """
    result: Any = _outcome(function) if rank() == 0 else None
    if size() > 1:
        held = [result]
        dist.broadcast_object_list(held, src=0, group=_group)
        result = held[0]
    value, error = result
    if error is not None:
        raise _again(error)
    return value  # type: ignore[no-any-return]


def from_all(function: Callable[[], T]) -> list[T]:
    """What `function` returns on each rank. Collective. Raises CheckpointError on all ranks if it fails on one."""
    outcomes = gather(_outcome(function))
    for failed, (_, error) in enumerate(outcomes):
        if error is not None:
            raise _again(error, f"Rank {failed}: " if size() > 1 else "")
    return [value for value, _ in outcomes]  # type: ignore[misc]


def _outcome(function: Callable[[], T]) -> tuple[T | None, tuple[bool, str] | None]:
    """(result, None) or (None, (whether the group is fenced off, message))."""
    try:
        return function(), None
    except CheckpointError as error:
        return None, (isinstance(error, FencedError), str(error))
    except Exception as error:  # noqa: BLE001 raised again, on all ranks
        return None, (False, f"{type(error).__name__}: {error}")


def _again(error: tuple[bool, str], prefix: str = "") -> CheckpointError:
    fenced, message = error
    return FencedError(message) if fenced else CheckpointError(prefix + message)
