"""`LoopSession`: a session for loops that are not the script's own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training.checkpoint import this_job
from elasticjob_runtime.training.checkpoint.order import NO_FENCE, State
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.engine import first_line
from elasticjob_runtime.training.session.feed import Cursor
from elasticjob_runtime.training.session.interruption import OverError
from elasticjob_runtime.training.session.session import ElasticSession

T = TypeVar("T")


class LoopSession(ElasticSession):
    def __init__(self, *, steps: Callable[[], int], entered: Callable[[], None], **parts: Any) -> None:
        """steps: how many steps the framework counts. The session also counts validations, and ends of epochs.
        entered: called after each change, and in the first world."""
        super().__init__(**parts)
        self._count, self._call_entered = steps, entered
        self._state.saves_before_changes = False  # an ElasticCallback does

    @property
    def in_place(self) -> bool:
        return self._engine is not None

    def settle(self) -> None:
        """Enters the world of the newest plan, if this process is not in it."""
        self._settle()

    def save_at_end(self, save: Callable[[], None]) -> None:
        """When all members leave, calls `save` in one process, between two steps. It must not communicate."""
        self._save_at_end(save)

    def drop_batch(self) -> None:
        """The batch that `batches` has yielded is not for this process."""
        self._offered = None

    @contextlib.contextmanager
    def moment(self) -> Iterator[None]:
        """Like `step`, for what belongs to the training but takes no batch: a validation, say. It is committed at the
        end, too, so that processes that it interrupts receive the state from those that have finished it."""
        with self._steps.take(self._commit_moment):
            yield

    def communicate(self, function: Callable[[], T], otherwise: Callable[[], T] | None = None) -> T:
        """What `function` returns, which communicates. If the world changes, it raises what interrupts the step. Where
        nothing can be repeated, such as after the optimizer's step, it returns `otherwise()`."""
        interruption = None if self._engine is None else self._engine.interruption

        def here() -> T:
            if interruption is not None and interruption.over:
                raise OverError("the world ended before its thread began")  # or it would communicate in the next one
            return function()

        try:
            return self._communicate(here)
        except Exception as error:
            if otherwise is None or self._steps.can_undo or not torch_private.is_link_error(error):
                raise
            self._steps.broken = self._steps.broken or first_line(error)
            return otherwise()

    # -- checkpoints of the framework

    def state_dict(self) -> dict[str, Any]:
        """How far the training is in its data, after the step in progress."""
        state, cursor = self._state, self._state.cursor
        committed = max(state.committed, 0)
        if self._offered is not None:
            committed, cursor = committed + 1, self._offered.next
        return {
            "committed": committed,
            "epoch": cursor.epoch,
            "consumed": cursor.consumed,
            "job": this_job(),
            "fence": os.environ.get(Env.FENCE, ""),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        cursor = Cursor(epoch=int(state["epoch"]), consumed=int(state["consumed"]))
        fence = Fence.parse(str(state["fence"])) if state["fence"] else NO_FENCE
        self._state.continue_from(State(step=int(state["committed"]), job=str(state["job"]), fence=fence), cursor)

    def _reported_step(self) -> int:
        return self._count()

    def _entered(self) -> None:
        self._call_entered()

    def _commit_moment(self) -> None:
        self._state.committed += 1
        self._state.keep()
