"""Whether a script carries gradients from one `session.step()` into the next, which an interrupted step would lose."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from elasticjob_runtime.training.session import torch_sharding
from elasticjob_runtime.training.session.parts import parameters_of
from elasticjob_runtime.training.session.world import SessionError

ACCUMULATED = (
    "this step uses gradients of an earlier one, in which no optimizer has stepped. An interrupted step would lose "
    "them, and joiners would not have them: put all backward() calls of one optimizer.step() in one session.step(), "
    "with a batch_size that is enough for them all, and call optimizer.zero_grad() if a step is left out"
)


class Accumulation:
    """Of the gradients of one optimizer. One of its parameters stands for all."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, sharded: bool) -> None:
        """sharded: whether a model of the session is. No hook tells then when FSDP adds to a gradient, so it counts
        unless `zero_grad` is called."""
        self._optimizer = optimizer
        self._watched: torch.Tensor | None = None
        """The smallest parameter with a gradient when there was one for the first time."""
        self._before: tuple[torch.Tensor, int] | None = None
        """The gradient of `_watched` and its version, when this step began."""
        self._left: torch.Tensor | None = None
        """The gradient of `_watched` to which an earlier step has added, without a step of the optimizer."""
        self._adds = False
        """Whether this step adds to it."""
        if sharded:
            self._watch_zero_grad()

    def begin(self) -> None:
        """A step begins."""
        self._before = _gradient(self._watched)
        self._adds = False
        if self._watched is not None and torch_sharding.is_dtensor(self._watched):
            self._add()

    def check(self) -> None:
        """The optimizer uses the gradients. Raises SessionError if an earlier step has left some of them."""
        watched = self._watch()
        left, self._left = self._left, None
        if self._adds and watched is not None and watched.grad is left:
            raise SessionError(ACCUMULATED)

    def end(self, *, used: bool) -> None:
        """A step ends. used: by the optimizer, or by a scaler, which may have left them out."""
        watched = self._watch()
        if used:
            self._left = None
            return
        now = _gradient(watched)
        if now is not None and not _same(now, self._before):
            self._left = now[0]

    def _watch(self) -> torch.Tensor | None:
        if self._watched is None or not self._watched.requires_grad:  # it is frozen now
            found = [
                parameter
                for parameter in parameters_of(self._optimizer)
                if parameter.grad is not None and parameter.requires_grad
            ]
            self._watched = min(found, key=torch.Tensor.numel, default=None)
            if self._watched is not None:
                self._watched.register_hook(self._add)  # before a gradient is added
        return self._watched

    def _add(self, _gradient: torch.Tensor | None = None) -> None:
        """A gradient is about to be added to what `_watched` has."""
        left = self._left
        if left is not None and self._watched is not None and self._watched.grad is left:
            self._adds = self._adds or bool(torch_sharding.local(left).any())

    def _watch_zero_grad(self) -> None:
        """Not that of models, which are pickled and copied with all that is set on them."""

        @functools.wraps(type(self._optimizer).zero_grad)  # Accelerate looks at its signature
        def watched(own: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            self._adds = False
            type(own).zero_grad(own, *args, **kwargs)

        self._optimizer.zero_grad = types.MethodType(watched, self._optimizer)  # type: ignore[method-assign]


def _gradient(parameter: torch.Tensor | None) -> tuple[torch.Tensor, int] | None:
    """The gradient, which may be added to in place, and its version."""
    gradient = None if parameter is None else parameter.grad
    return None if gradient is None else (gradient, torch_sharding.local(gradient)._version)


def _same(now: tuple[torch.Tensor, int], before: tuple[torch.Tensor, int] | None) -> bool:
    return before is not None and now[0] is before[0] and now[1] == before[1]
