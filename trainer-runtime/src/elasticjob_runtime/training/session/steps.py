"""Takes one step after the other, and undoes those that are interrupted."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from elasticjob_runtime.training.session import torch_sharding
from elasticjob_runtime.training.session.accumulation import ACCUMULATED, Accumulation
from elasticjob_runtime.training.session.engine import Engine, first_line
from elasticjob_runtime.training.session.interruption import OVER, OverError, TrialOverError
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.state import TrainingState
from elasticjob_runtime.training.session.undo import Modes, Undo
from elasticjob_runtime.training.session.world import SessionError

T = TypeVar("T")

logger = logging.getLogger("elasticjob_runtime.training")


class Steps:
    def __init__(self, parts: Parts, state: TrainingState, engine: Engine | None) -> None:
        """engine: None if nothing interrupts steps."""
        self._parts = parts
        self._state = state
        self._engine = engine
        self._undo: Undo | None = None
        self._stepped: set[int] = set()
        """Optimizers that have stepped in this step."""
        self._scaled = False
        """Whether a scaler has decided on the gradients of this step, which it may have left out."""
        self._accumulations = [Accumulation(optimizer, sharded=parts.are_sharded) for optimizer in parts.optimizers]
        self._trial = False
        """Whether this step is one."""
        self.broken = ""
        """How the communication in this world has failed; empty: not at all."""
        self.repeats = False
        """Whether the last step was interrupted, and is to be taken again."""
        for index, optimizer in enumerate(parts.optimizers):
            optimizer.register_step_pre_hook(functools.partial(self._before_optimizer, index))
            optimizer.register_step_post_hook(functools.partial(self._after_optimizer, index))
        for part in parts.others:
            if isinstance(part, torch.amp.GradScaler):  # its step() looks at the gradients before optimizer.step()
                part.step = functools.partial(self._step_of_scaler, part.step)  # type: ignore[method-assign]

    @property
    def can_undo(self) -> bool:
        """Whether a step is in progress that would be undone if it were interrupted now."""
        return self._undo is not None and not self._stepped

    @contextlib.contextmanager
    def take(self, commit: Callable[[], None], *, trial: bool = False) -> Iterator[None]:
        """One step, and then `commit`; neither if it is interrupted, unless it was complete. trial: it is interrupted
        after the last optimizer's step, and all that it has changed is undone."""
        engine = self._engine
        self._stepped.clear()
        self._scaled = False
        for accumulation in self._accumulations:
            accumulation.begin()
        if engine is None:
            yield
            self._check_gradients()
            commit()
            return
        undo = self._undo = Undo(self._parts)
        self._state.values.begin()
        engine.begin_step()
        self.repeats, self._trial = False, trial
        try:
            yield
            if not self._stepped:
                undo.look()
                self._wait_for_collectives(used=self._scaled)
                if engine.interruption.over:  # and the script may have taken that for an error of its own
                    raise OverError(OVER)
            if trial:
                raise TrialOverError
            self._check_gradients()
        except TrialOverError:
            self._undo_trial(undo)
            return
        except Exception as error:
            if not engine.interrupts(error):
                raise
            self.broken = first_line(error)
            logger.info("step %d is interrupted: %s", self._state.committed + 1, self.broken)
            self._end_interrupted(undo, commit)
            return
        finally:
            self._undo = None
            engine.between_steps = True
        commit()

    def _end_interrupted(self, undo: Undo, commit: Callable[[], None]) -> None:
        undo.look()
        if not self._stepped or len(self._stepped) < len(self._parts.optimizers):
            self.repeats = True
            self._state.values.roll_back()
            if not undo.restore():
                self._state.tear()
        elif not self._parts.others and not self._state.values.change_in_steps:
            commit()  # what remained was for the user's eyes: a mean loss, say
        else:
            self._state.tear()

    def _undo_trial(self, undo: Undo) -> None:
        """The state of optimizers stays where it is, to receive that of others."""
        spare = {id(optimizer): dict(optimizer.state) for optimizer in self._parts.optimizers}
        self.repeats = True
        self._state.values.roll_back()
        if not undo.restore():
            self._state.tear()
        self._parts.spare = spare

    def meet(self) -> None:
        """Returns when all replicas have committed the last step, or the world is over."""
        if self._engine is not None and not self.repeats:
            self._engine.between_steps = False
            try:
                self._engine.meet()
            except OverError as error:
                self.broken = first_line(error)
            finally:
                self._engine.between_steps = True

    @property
    def is_over(self) -> bool:
        """Whether nothing can communicate in this world any more."""
        return bool(self.broken) or (self._engine is not None and self._engine.interruption.over)

    def evaluate(self, function: Callable[[], T]) -> T:
        """What `function` returns. Raises OverError if it is interrupted."""
        engine = self._engine
        if engine is None:
            return function()
        modes = Modes(self._parts)
        engine.evaluates = True
        try:
            with self._state.values.whole():
                return self.exchange(function)
        except OverError:
            logger.info("an evaluation after step %d is interrupted: %s", self._state.committed, self.broken)
            modes.restore()
            raise
        finally:
            engine.evaluates = False

    def exchange(self, function: Callable[[], T]) -> T:
        """What `function` returns, with which all ranks communicate between two steps. Raises OverError if it is
        interrupted."""
        engine = self._engine
        if engine is None:
            return function()
        engine.between_steps = False
        try:
            result = function()
            if not engine.votes:
                engine.wait_for_collectives()
            return result
        except Exception as error:
            if not engine.interrupts(error):
                raise
            self.broken = first_line(error)
            raise OverError(self.broken) from error
        finally:
            engine.between_steps = True

    def _before_optimizer(self, index: int, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Communication may follow in the same step if there are other optimizers, or within this one's step if it has
        a closure."""
        if not _has_closure(args, kwargs):  # else it may call zero_grad()
            self._accumulations[index].check()
        if self._undo is not None:
            self._undo.look()
        self._wait_for_collectives()
        others = set(range(len(self._parts.optimizers))) - self._stepped - {index}
        interrupted_late = _has_closure(args, kwargs) and not self._ends_in_time(optimizer)
        if self._undo is not None and (self._trial or others or interrupted_late):
            self._undo.keep(optimizer)

    def _ends_in_time(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step that communicates in a closure fails there, before it changes anything."""
        known = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, torch.optim.LBFGS)
        return known and self._engine is not None and not self._engine.completes_early

    def _after_optimizer(self, index: int, _: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _has_closure(args, kwargs):
            self._wait_for_collectives()
            self._accumulations[index].check()
        self._stepped.add(index)
        if self._trial and self._undo is not None and len(self._stepped) == len(self._parts.optimizers):
            raise TrialOverError

    def _step_of_scaler(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._scaled = True
        if self._engine is not None and self._engine.completes_early:
            self._wait_for_collectives()
        return step(*args, **kwargs)

    def _check_gradients(self) -> None:
        """At the end of a step. Raises SessionError if FSDP keeps gradients that it has not reduced: nothing but
        another backward() would use them."""
        for index, accumulation in enumerate(self._accumulations):
            accumulation.end(used=self._scaled or index in self._stepped)
        if not (self._stepped or self._scaled) and any(map(torch_sharding.keeps_unreduced, self._parts.modules)):
            raise SessionError(ACCUMULATED)

    def _wait_for_collectives(self, *, used: bool = True) -> None:
        """What they have produced is about to change the state, or, if it is not `used`, the step ends. In the midst of
        a step only."""
        if self._undo is not None and self._engine is not None:
            self._engine.wait_for_collectives(used=used)


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Whether these are arguments of an optimizer's `step` that computes gradients itself."""
    return any(arg is not None for arg in (*args[1:], *kwargs.values()))  # Accelerate passes None
