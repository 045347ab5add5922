"""`load_checkpoint` and `save_checkpoint`, the classic pair, with torch's serializer on a directory of checkpoints.

Each checkpoint is a file that plain `torch.load` opens too; see `elasticjob_runtime.training.checkpoint` for what makes
it safe.
"""

from __future__ import annotations

import logging
import os
import pathlib
import pickle
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from elasticjob_runtime.training import channel, checkpoint, progress

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("elasticjob_runtime.training")

PathLike = str | os.PathLike[str]

_checked_content: set[pathlib.Path] = set()
"""Directories whose first checkpoint of this process was looked at for objects that a safe load refuses."""


def load_checkpoint(
    path: PathLike, map_location: str | torch.device | None = "cpu", *, weights_only: bool = True
) -> Any | None:
    """The state in the newest whole checkpoint in the directory `path`, or None where there is none yet.

    Corrupt and half-written checkpoints are skipped for the one before, each with one warning in the log.

    - map_location: as torch.load's. The default keeps the ranks of a machine from loading all their states onto its
      first GPU.
    - weights_only: as torch.load's. With True a checkpoint is data: tensors, numbers, strings, and dicts, lists and
      tuples of them. With False it may hold any Python object, and loading it runs whatever code its writer put in:
      only for directories you trust.

    Each rank may call it. Ranks on different machines can find different steps (a shared folder with a cache, a local
    disk); where that matters, load on rank 0 and send the state to the others:
    `torch.distributed.broadcast_object_list`.

    Raises CheckpointError where the newest whole checkpoint cannot be read, or holds other objects than `weights_only`
    allows.
    """

    def read(file: BinaryIO) -> Any:
        import torch

        return torch.load(file, map_location=map_location, weights_only=weights_only)

    began = time.time()
    try:
        found = checkpoint.load(path, read)
    except pickle.UnpicklingError as error:
        raise checkpoint.CheckpointError(
            f"The newest checkpoint in {path} is whole, but torch.load refuses it: {_first_line(error)} "
            "If you trust this directory: load_checkpoint(..., weights_only=False)."
        ) from error
    if found is None:
        return None
    progress.remember_checkpoint(found.step)
    channel.send_phase("restore", began=began, step=found.step)
    return found.state


def save_checkpoint(
    path: PathLike, state: Any, *, step: int | None = None, keep: int = checkpoint.DEFAULT_KEEP
) -> None:
    """Saves `state` as a checkpoint in the directory `path`, which is made where it is missing.

    The rank that calls writes: call it on rank 0, all other ranks may go on. When it returns, the checkpoint is on the
    disk. A process that dies in the middle leaves the checkpoints before it as they were.

    - state: what torch.save takes. Keep to tensors, numbers, strings, dicts, lists and tuples (`state_dict()` gives
      nothing else), and `load_checkpoint` reads it without trusting it; a warning names what goes beyond.
    - step: names the checkpoint; the highest is the newest. Default: state["step"] where there is one, else one more
      than the newest.
    - keep: how many checkpoints stay.

    A group that was replaced while it was cut off or frozen cannot commit any more: its save raises FencedError, a
    CheckpointError. Let it pass: the group has to end. The first save of a group claims the directory; see
    docs/design/0002-rendezvous.md.

    Raises CheckpointError where the directory cannot be written, FencedError where a newer group saves there.
    """
    import torch

    number = _step_of(path, state) if step is None else step
    written = checkpoint.save(path, number, lambda file: torch.save(state, file), keep=keep)
    progress.remember_checkpoint(number)
    channel.send_phase("checkpoint", step=number)
    if written.parent not in _checked_content:
        _checked_content.add(written.parent)
        _warn_of_objects(written)


def _step_of(path: PathLike, state: Any) -> int:
    if isinstance(state, Mapping) and isinstance(state.get("step"), int):
        return int(state["step"])
    return max(checkpoint.steps(path), default=0) + 1


def _warn_of_objects(path: pathlib.Path) -> None:
    """A state that the default load will refuse is better known now than at the first restart."""
    import torch

    find = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)  # torch >= 2.6
    objects = find(path) if find is not None else []
    if objects:
        logger.warning(
            "The state saved in %s holds %s: load_checkpoint will read it with weights_only=False only.",
            path.parent,
            ", ".join(sorted(objects)),
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
