"""What a training script may import: checkpoints in the classic pair of functions, and progress for the agent.

    state = load_checkpoint(directory)              # the newest whole one, or None
    save_checkpoint(directory, state, step=step)    # on rank 0
    report_progress(step, loss=loss)                # shows in `kubectl get elasticjob`
    expect_pause(1800, "evaluation")                # with --hang-factor: no step for a while is no hang

The only part of the runtime that imports torch, and only inside the functions that need it: `report_progress` works in
any Python script.
"""

from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.checkpoint.save_load import load_checkpoint, save_checkpoint
from elasticjob_runtime.training.progress import expect_pause, report_progress

__all__ = ["CheckpointError", "expect_pause", "load_checkpoint", "report_progress", "save_checkpoint"]
