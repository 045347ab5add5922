"""`load_checkpoint(from_any_rank=True)`: the newest checkpoint that any rank has found, on its machine's disk or in its
agent's memory, for all ranks."""

from __future__ import annotations

import dataclasses
import io
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from elasticjob_runtime.training import channel
from elasticjob_runtime.training.checkpoint.directory import this_job
from elasticjob_runtime.training.checkpoint.order import State
from elasticjob_runtime.training.checkpoint.reading import CheckpointError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("elasticjob_runtime.training")

PIECE = 64 << 20
"""Bytes that are sent at a time: the memory that sending takes, besides the checkpoint itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    rank: int | None
    """Who sends its checkpoint to all others; None: each rank uses its own, or there is none."""
    reason: str


def choose(found: Sequence[State], job: str) -> Choice:
    """Which checkpoint all ranks of `job` continue from. found: of each rank, in order. Pure."""
    precedence = [state.precedence(job) for state in found]
    best = max(range(len(found)), key=lambda rank: (precedence[rank], -rank))
    if found[best].step < 0:
        return Choice(None, "no rank has a checkpoint")
    same = [rank for rank in range(len(found)) if precedence[rank] == precedence[best]]
    if len(same) == len(found):
        return Choice(None, f"all ranks have the checkpoint of step {found[best].step}")
    lacking = ", ".join(str(rank) for rank in range(len(found)) if rank not in same)
    return Choice(
        best, f"rank {best} sends the checkpoint of step {found[best].step}, which these ranks lack: {lacking}"
    )


def load(
    find: Callable[[], tuple[State, Any]],
    map_location: str | torch.device | None,
    *,
    weights_only: bool,
    restored: Callable[[int], None],
) -> Any | None:
    """Collective. find: this rank's checkpoint and its state. restored: called with the step of one that another rank
    has sent.

    Raises CheckpointError on all ranks if one has failed.
    """
    import torch
    import torch.distributed as dist

    from elasticjob_runtime.training.sharded import ranks

    if not dist.is_initialized() and channel.number("WORLD_SIZE") > 1:
        raise CheckpointError(
            "load_checkpoint(from_any_rank=True) compares what the ranks have: call it on all of them, after "
            "torch.distributed.init_process_group"
        )
    state: Any = None

    def own() -> State:
        nonlocal state
        found, state = find()
        return found

    found = ranks.from_all(own)
    job = this_job()
    choice = choose(found, job)
    if ranks.rank() == 0:
        logger.info("%s", choice.reason)
    if choice.rank is None:
        return state
    sends = ranks.rank() == choice.rank
    data = _send(choice.rank, state if sends else None)
    if sends or found[ranks.rank()].precedence(job) == found[choice.rank].precedence(job):
        return state
    state = torch.load(io.BytesIO(data), map_location=map_location, weights_only=weights_only)
    restored(found[choice.rank].step)
    return state


def _send(sender: int, state: Any) -> bytes:
    """Collective. What `torch.save` makes of the sender's state, on all ranks."""
    import torch
    import torch.distributed as dist

    file = io.BytesIO()
    sends = dist.get_rank() == sender
    if sends:
        torch.save(state, file)
    size = [file.tell()]
    dist.broadcast_object_list(size, src=sender)
    file.seek(0)
    for _ in range(0, size[0], PIECE):
        piece = [file.read(PIECE) if sends else b""]
        dist.broadcast_object_list(piece, src=sender)
        if not sends:
            file.write(piece[0])
    return file.getvalue() if not sends else b""
