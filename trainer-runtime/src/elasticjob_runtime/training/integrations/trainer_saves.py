"""How Trainer saves when its processes continue in place: what it waits for there must end with the world."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist


@contextlib.contextmanager
def barrier_as(meet: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, `torch.distributed.barrier` is `meet`: gloo's own may not end with the world."""

    def barrier(*_: Any, **__: Any) -> None:
        meet()

    original = dist.barrier
    setattr(dist, "barrier", barrier)  # noqa: B010 mypy
    try:
        yield
    finally:
        setattr(dist, "barrier", original)  # noqa: B010
