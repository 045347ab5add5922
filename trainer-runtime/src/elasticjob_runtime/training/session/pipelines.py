"""Pipelines (`torch.distributed.pipelining`) for which the size of a share changes.

In its first step, a schedule finds out the shapes that its stages send to each other. It keeps them: a microbatch of
another size ends in an error of gloo, and so may a step after an interrupted one, of which something is left. So for
another share, and in another world, schedules and stages begin anew, from what they were before their first step.
"""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from typing import Any

import torch

from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.world import SessionError

MODULE = "torch.distributed.pipelining.schedules"
KEPT = ("_has_backward", "has_backward")
"""What schedules and stages keep, because `eval` and `step` set it."""

_before: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""The attributes of all schedules that were used, and of their stages, before their first step."""


class Pipelines:
    """Of this process."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def begin(self, world: int, samples: int) -> None:
        """Before a step with so many samples on this rank, in the world of this number."""
        _watch_all()
        if self._last not in (None, (world, samples)):
            for owner, attributes in _before.items():
                _restore(owner, attributes)
        self._last = (world, samples)


def _watch_all() -> None:
    """Once the script has imported them."""
    if (module := sys.modules.get(MODULE)) is None:
        return
    for schedule in torch_private.schedule_classes(module):
        if not hasattr(schedule.step, "__wrapped__"):
            schedule.step = _watch(schedule.step)


def _watch(step: Any) -> Any:
    @functools.wraps(step)
    def watched(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        stages = torch_private.stages_of(schedule)
        for owner in (schedule, *stages):
            if owner not in _before:
                _before[owner] = _copied(vars(owner))
        if any(stage.num_stages > len(stages) for stage in stages):
            _check_sizes([*args, kwargs.get("target")], torch_private.microbatches_of(schedule))
        return step(schedule, *args, **kwargs)

    return watched


def _check_sizes(values: list[Any], microbatches: int | None) -> None:
    """microbatches: into how many of one size the values are divided; None: the script says how."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() and microbatches and len(value) % microbatches:
            raise SessionError(
                f"a batch of {len(value)} samples cannot be divided into {microbatches} microbatches of one size, "
                "which a pipeline needs: choose a `batch_size` that can, divided by any number of replicas that the "
                "job may have (allowedReplicas), and `drop_last=True`"
            )


def _restore(owner: Any, attributes: dict[str, Any]) -> None:
    kept = {name: value for name, value in vars(owner).items() if name in KEPT}
    vars(owner).clear()
    vars(owner).update(_copied(attributes) | kept)


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """With containers of their own, in which the same things are."""
    return {name: copy.copy(value) if type(value) in (dict, list, set) else value for name, value in attributes.items()}
