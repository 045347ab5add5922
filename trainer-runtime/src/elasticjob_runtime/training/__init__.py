"""Functions for training scripts: checkpoints, and progress reports to the agent.

    state = load_checkpoint(directory)              # the newest intact checkpoint, or None
    save_checkpoint(directory, state, step=step)    # call this on rank 0
    report_progress(step, loss=loss)                # shown by `kubectl get elasticjob`
    expect_pause(1800, "evaluation")                # --hang-factor: a long step is coming
    if checkpoint_wanted(): ...                     # save now, because the worker group is about to change
    ElasticSession(model=ddp, optimizer=opt)        # continues in place when processes are lost or join

    state = {"model": model, "optimizer": optimizer}        # sharded over the ranks (FSDP2)
    step = load_sharded_checkpoint(directory, state)        # call these on all ranks
    save_sharded_checkpoint(directory, state, step=step)

Only `ElasticSession` and the functions for checkpoints import torch. The other functions work in any Python
script.
"""

from typing import TYPE_CHECKING, Any

from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.checkpoint.save_load import load_checkpoint, save_checkpoint
from elasticjob_runtime.training.progress import expect_pause, report_progress
from elasticjob_runtime.training.save_request import checkpoint_wanted

if TYPE_CHECKING:
    from elasticjob_runtime.training.session import ElasticSession, SessionError
    from elasticjob_runtime.training.sharded.save_load import load_sharded_checkpoint, save_sharded_checkpoint

__all__ = [
    "CheckpointError",
    "ElasticSession",
    "SessionError",
    "checkpoint_wanted",
    "expect_pause",
    "load_checkpoint",
    "load_sharded_checkpoint",
    "report_progress",
    "save_checkpoint",
    "save_sharded_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name in ("ElasticSession", "SessionError"):
        from elasticjob_runtime.training import session

        return getattr(session, name)
    if name in ("load_sharded_checkpoint", "save_sharded_checkpoint"):
        from elasticjob_runtime.training.sharded import save_load

        return getattr(save_load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
