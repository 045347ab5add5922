"""`load_checkpoint(from_any_rank=True)`: the newest checkpoint that any rank has found, on its machine's disk or in its
agent's memory, for all ranks."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticjob_runtime.training import channel, checkpoint
from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.checkpoint.order import Held, State, choose
from elasticjob_runtime.training.checkpoint.reading import UnreadableError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("elasticjob_runtime.training")

PIECE = 64 << 20
"""Bytes that are sent at a time: the memory that sending takes, besides the checkpoint itself."""


def load(
    find: Callable[[], tuple[State, Any]],
    map_location: str | torch.device | None,
    *,
    weights_only: bool,
) -> Any | None:
    """Collective. find: this rank's checkpoint and its state.

    Raises CheckpointError on all ranks if one has failed, unless it only cannot read what another has as new or newer.
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

    def own() -> Held:
        nonlocal state
        try:
            found, state = find()
        except UnreadableError as error:  # another rank may have it, or something newer
            return Held(rank=ranks.rank(), state=error.state, unreadable=str(error))
        return Held(rank=ranks.rank(), state=found)

    held = ranks.from_all(own)
    choice = choose(held, checkpoint.this_job(), shared=False, ranks=len(held))
    if choice.unreadable:
        raise CheckpointError(choice.unreadable)
    if ranks.rank() == 0:
        logger.info("%s", choice.why)
    if len(choice.ranks) in (0, len(held)):
        return state
    checkpoint.continue_from(choice.state)
    data = _send(choice.held[0].rank, state)
    if ranks.rank() in choice.ranks:
        return state
    state = torch.load(io.BytesIO(data), map_location=map_location, weights_only=weights_only)
    channel.send_phase("restore", began=time.time(), step=choice.state.step)
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
