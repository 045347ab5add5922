"""What an interrupted step has changed of what the user gave to the session, and what a process does that the others
have done already, put back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from elasticjob_runtime.training.session import randomness, torch_private
from elasticjob_runtime.training.session.parts import Parts, mark, parameters_of


class Modes:
    """Which modules train, and which evaluate."""

    def __init__(self, parts: Parts) -> None:
        self._modules = parts.all_modules()
        self._training = [module.training for module in self._modules]

    def restore(self) -> None:
        for module, training in zip(self._modules, self._training, strict=True):
            module.training = training


class _KeptOptimizer:
    """Copies of all that an optimizer has."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [parameter.detach().clone() for parameter in parameters_of(optimizer)]
        self._state = copy.deepcopy(optimizer.state_dict())

    def restore(self) -> None:
        self._optimizer.load_state_dict(self._state)
        with torch.no_grad():
            for parameter, value in zip(parameters_of(self._optimizer), self._parameters, strict=True):
                parameter.copy_(value)


class Aside:
    """What scripts also change between two steps: settings of optimizers, schedulers, averaged models, and whatever
    else has a state."""

    def __init__(self, parts: Parts, *, only_small: bool = False, optimizers: bool = False) -> None:
        """only_small: settings of optimizers, and torch's schedulers. optimizers: also their parameters and states."""
        self._kept = [_KeptOptimizer(one) for one in parts.optimizers if optimizers]
        optimized = (
            [] if only_small else [id(parameter) for one in parts.optimizers for parameter in parameters_of(one)]
        )
        self._groups = [group for optimizer in parts.optimizers for group in optimizer.param_groups]
        self._settings = [
            {name: _copied(value) for name, value in group.items() if name != "params"} for group in self._groups
        ]
        self._parts = [
            part
            for part in parts.others
            if (
                isinstance(part, LRScheduler)
                if only_small
                else not isinstance(part, torch.nn.Module) or set(optimized).isdisjoint(map(id, part.parameters()))
            )
        ]
        self._states = [copy.deepcopy(part.state_dict()) for part in self._parts]

    def restore(self) -> None:
        for kept in self._kept:
            kept.restore()
        for group, values in zip(self._groups, self._settings, strict=True):
            group.update({name: _copied(value) for name, value in values.items()})
        for part, state in zip(self._parts, self._states, strict=True):
            part.load_state_dict(copy.deepcopy(state))  # it may keep what it is given, and be restored again


class Undo:
    """What a step changes before its last optimizer steps: buffers, modes, which parameters are trained, random states,
    settings and schedulers, and what `keep` has kept of optimizers: all, where scripts change parameters themselves.
    Gradients are dropped, not restored: a step begins without any."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._modes = Modes(parts)
        self._kept: dict[int, _KeptOptimizer] = {}
        self._settings = Aside(parts, only_small=True)
        self._aside: Aside | None = None
        self._constant: list[tuple[torch.Tensor, tuple[int, int]]] = []
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for buffer in parts.buffers():
            if parts.is_constant(buffer):
                self._constant.append((buffer, mark(buffer)))
            else:
                self._buffers.append((buffer, buffer.clone()))
        self._random = randomness.state()
        self._trained = parts.trained()
        self._versions: tuple[int, int] | None = parts.versions()
        """None: `look` has compared them."""
        self._complete = True
        """Whether all that the step has changed so far can be restored."""
        for optimizer in parts.optimizers if parts.changes_parameters else ():
            self.keep(optimizer)

    def look(self) -> None:
        """Before the first optimizer's step: whether the script itself has changed parameters. The first such step
        cannot be undone, and those that follow can."""
        if self._versions is not None and self._parts.versions() != self._versions:
            self._complete = self._parts.changes_parameters
            self._parts.changes_parameters = True
        self._versions = None

    def keep(self, optimizer: torch.optim.Optimizer) -> None:
        """Copies what `optimizer` is about to change, because communication may follow in the same step."""
        if self._aside is None:
            self._aside = Aside(self._parts)
        if id(optimizer) not in self._kept:
            self._kept[id(optimizer)] = _KeptOptimizer(optimizer)

    def restore(self) -> bool:
        """False: the step has changed what none had changed before, and what was not copied: a large buffer, or
        parameters before an optimizer."""
        self._modes.restore()
        if self._aside is not None:
            self._aside.restore()
        for part in self._parts.others:
            torch_private.forget_unscaled(part)
        for kept in self._kept.values():
            kept.restore()
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self._parts.train(self._trained)
        self._settings.restore()
        randomness.restore(self._random)
        self._parts.forget_gradients()
        self._parts.forget_constants()
        return self._complete and all(mark(buffer) == before for buffer, before in self._constant)


def _copied(setting: Any) -> Any:
    return setting if setting is None or type(setting) in (bool, int, float, str) else copy.deepcopy(setting)
