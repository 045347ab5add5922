"""How far a Hugging Face Trainer is: the part of a session's state that is neither model, optimizer nor scheduler; and
`TrainerAdapter`, which puts it back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_callback import ExportableState

from elasticjob_runtime.training.integrations.accelerate import AcceleratorAdapter

OF_THIS_PROCESS = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks")
"""Fields of TrainerState that differ between processes, or that Trainer fills in when it saves."""
COUNTERS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")


class TrainerProgress:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.ended = 0
        """Epochs."""
        self.taken = 0
        """Steps of this epoch."""
        self.over = False
        """A callback has ended this epoch, or the training."""
        self.grad_norm: torch.Tensor | float | None = None
        self.learning_rate: float | None = None
        """Of the last step."""

    def is_over(self, epoch: int) -> bool:
        """Whether the end of an epoch is to be announced; epoch: that of the next batch."""
        return self.over or epoch > self.ended

    def is_pending(self, epoch: int) -> bool:
        """Whether something is due before the next batch."""
        control = self._trainer.control
        return control.should_log or control.should_evaluate or control.should_save or self.is_over(epoch)

    def end_epoch(self) -> None:
        self.ended, self.taken, self.over = self.ended + 1, 0, False

    def count(self, loss: torch.Tensor, operations: torch.Tensor) -> None:
        """Of one step, of all processes."""
        self._trainer._tr_loss += loss
        self._trainer.current_flos += operations

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        state = dataclasses.asdict(trainer.state)
        return {
            "state": {name: value for name, value in state.items() if name not in OF_THIS_PROCESS},
            "control": trainer.control.state()["args"],
            "callbacks": [(type(callback).__name__, callback.state()["attributes"]) for callback in self._exportable()],
            "counters": {name: getattr(trainer, name) for name in COUNTERS},
            "loss": trainer._tr_loss.item(),
            "operations": float(trainer.current_flos),
            "epoch": (self.ended, self.taken, self.over),
            "step": (None if self.grad_norm is None else float(self.grad_norm), self.learning_rate),
        }

    def load_state_dict(self, given: dict[str, Any]) -> None:
        trainer = self._trainer
        _set(trainer.state, given["state"])
        _set(trainer.control, given["control"])
        _set(trainer, given["counters"])
        for callback, (name, attributes) in zip(self._exportable(), given["callbacks"], strict=True):
            if type(callback).__name__ != name:
                raise ValueError(f"this process has the callback {type(callback).__name__} where others have {name}")
            _set(callback, attributes)
        trainer._tr_loss.fill_(given["loss"])
        trainer.current_flos = given["operations"]
        self.ended, self.taken, self.over = given["epoch"]
        self.grad_norm, self.learning_rate = given["step"]

    def _exportable(self) -> Iterator[Any]:
        return (
            callback for callback in self._trainer.callback_handler.callbacks if isinstance(callback, ExportableState)
        )


class TrainerAdapter(AcceleratorAdapter):
    def __init__(self, trainer: Trainer, progress: TrainerProgress, follow: Callable[[], None]) -> None:
        """follow: called in each world."""
        super().__init__(trainer.accelerator)
        self._trainer = trainer
        self._progress = progress
        self._follow = follow

    def steps(self) -> int:
        return int(self._trainer.state.global_step)

    def entered(self) -> None:
        super().entered()
        self._follow()

    def remember(self, *, batch: bool) -> Callable[[], None]:
        """Before the optimizer's step, one with a batch changes nothing that Trainer counts. An evaluation and what
        follows it may."""
        of_accelerator = super().remember(batch=batch)
        if batch:
            return of_accelerator
        progress, scheduler = self._progress, self._trainer.lr_scheduler
        before = copy.deepcopy((progress.state_dict(), scheduler.state_dict()))

        def put_back() -> None:
            of_accelerator()
            progress.load_state_dict(before[0])
            scheduler.load_state_dict(before[1])

        return put_back


def _set(owner: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(owner, name, value)
