"""For Hugging Face's Trainer: no step is lost at planned changes.

trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[ElasticCallback()])
trainer.train(resume_from_checkpoint=newest_checkpoint(arguments.output_dir))
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl

from elasticjob_runtime.training.save_request import checkpoint_wanted


class ElasticCallback(TrainerCallback):
    """Makes Trainer save before the worker group changes, on all ranks after the same step.

    It uses `checkpoint_wanted`, so the same holds: a script that handles SIGTERM gets that signal instead. Evaluation
    and save strategies stay as they are, except that an evaluation due at this very step is left out: the time to save
    is short.
    """

    def __init__(self) -> None:
        self.is_last_save = False
        """The next checkpoint is the last of this process."""
        self.skips_evaluation = False
        """One was due after the same step."""

    def on_step_end(self, _args: Any, _state: Any, control: TrainerControl, **_: Any) -> TrainerControl:
        # The last step of the training needs no checkpoint: Trainer would take another step when it continues there.
        if checkpoint_wanted() and not control.should_training_stop:
            self.is_last_save = True
            control.should_save = True
            self.skips_evaluation = control.should_evaluate
            control.should_evaluate = False
        return control

    def on_save(self, _args: Any, _state: Any, control: TrainerControl, **_: Any) -> TrainerControl:
        if self.is_last_save:
            self.is_last_save = False
            checkpoint_wanted()  # does not return: the checkpoint is complete, and this process ends
        return control


def newest_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest complete checkpoint in `folder` (Trainer's output_dir), or None, for `train(resume_from_checkpoint=)`.

    `resume_from_checkpoint=True` fails if there is no checkpoint, or if the newest one is incomplete because its
    process was killed.
    """
    # Trainer writes trainer_state.json last.
    found = [file.parent for file in Path(folder).glob("checkpoint-*/trainer_state.json") if _step(file.parent) >= 0]
    return str(max(found, key=_step)) if found else None


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
