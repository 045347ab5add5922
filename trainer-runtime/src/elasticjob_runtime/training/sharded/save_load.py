"""`save_sharded_checkpoint` and `load_sharded_checkpoint`: for models of which each rank has only a part."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from elasticjob_runtime.training import channel, checkpoint
from elasticjob_runtime.training.checkpoint.directory import PathLike
from elasticjob_runtime.training.sharded import ranks, saving
from elasticjob_runtime.training.sharded.contents import Contents
from elasticjob_runtime.training.sharded.memory import Shards


def save_sharded_checkpoint(
    path: PathLike,
    state: Mapping[str, Any],
    *,
    step: int,
    keep: int = checkpoint.DEFAULT_KEEP,
    durable: bool = True,
    block: bool = True,
) -> None:
    """Saves a checkpoint in the directory `path`, which all ranks share. Call this on all ranks.

        save_sharded_checkpoint(path, {"model": model, "optimizer": optimizer, "scheduler": scheduler}, step=step)

    Each rank writes its part, in the format of torch.distributed.checkpoint. When this returns, the checkpoint is on
    the disk. If a process dies meanwhile, earlier checkpoints are untouched.

    - state: models, optimizers and anything else with `state_dict` and `load_state_dict`, by name. The model of each
      optimizer must be among them. Of the others, the state of one rank is saved.
    - step: names the checkpoint; the highest step is the newest.
    - keep: how many checkpoints to keep.
    - durable: False leaves the state in memory only, each part with the agent of its rank. It survives the death of all
      worker processes. Without an agent (plain python, torchrun), nothing is saved.
    - block: False copies the state of each rank to its CPU's memory, and a thread writes that while the training
      continues. The next durable save waits for it, and raises its error. A process that ends by itself waits for it,
      too; of one that is killed, nothing is left.

    Under elasticrun, the state is left in memory in either case, twice its size.

    Raises CheckpointError on all ranks if one of them cannot write, FencedError if a newer worker group saves there.
    """
    contents = Contents(state)
    if durable:
        saving.save(path, contents, step, keep, block=block)
    shards = _shards(path)
    if not any(ranks.gather(shards.is_busy(contents))):
        shards.keep(contents, step)


def load_sharded_checkpoint(path: PathLike, state: Mapping[str, Any]) -> int | None:
    """Loads the newest intact checkpoint of the directory `path` into `state`, and returns its step; None if there is
    no checkpoint yet. Call this on all ranks, with what `save_sharded_checkpoint` gets.

    The number of ranks may be another one than when it was saved: each rank reads what belongs to its part. Under
    elasticrun, a snapshot in memory is used if all its parts are still there, and it is at least as new. Corrupt and
    incomplete checkpoints are skipped for the previous one, each with one warning in the log.

    What is neither a model nor an optimizer has to be plain data: tensors, numbers, strings, and dicts, lists and
    tuples of them. Loading runs no code that its writer chose.

    Raises CheckpointError on all ranks if the newest intact checkpoint cannot be read, or does not fit.
    """
    began = time.time()
    saving.finish()
    step = _shards(path).restore(Contents(state), path)
    if step is not None:
        channel.send_phase("restore", began=began, step=step)
    return step


def _shards(path: PathLike) -> Shards:
    return Shards(f"sharded checkpoint {os.path.realpath(path)}")
