"""What `ElasticStrategy` does not support."""

from __future__ import annotations

from typing import Any

_CALLBACKS = {
    "BaseFinetuning": "changes which parameters are trained",
    "GradientAccumulationScheduler": "accumulates gradients over several batches",
    "ModelPruning": "changes the parameters",
    "StochasticWeightAveraging": "has weights of its own",
    "WeightAveraging": "has weights of its own",
    "BatchSizeFinder": "changes the size of batches",
    "LearningRateFinder": "trains before the training",
}
"""Names of Lightning's classes, and why a process that joins would not have their state."""


def refusal(trainer: Any) -> str | None:
    """Why the training cannot continue in place. None: nothing is against it."""
    module = trainer.lightning_module
    if not module.automatic_optimization:
        return "manual optimization may keep gradients from one batch to the next, which an interruption drops"
    if trainer.accumulate_grad_batches != 1:
        return "a step is one batch of all ranks: raise global_batch_size, not accumulate_grad_batches"
    if trainer.reload_dataloaders_every_n_epochs:
        return "reload_dataloaders_every_n_epochs may change the data set in the midst of a training"
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        return "ranks do not agree on the time: give val_check_interval as a number of batches"
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in _CALLBACKS:
                return f"{type(callback).__name__} {_CALLBACKS[kind.__name__]}, which a process that joins cannot know"
    return None
