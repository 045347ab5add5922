"""A script's models, optimizers and other objects as one state for torch.distributed.checkpoint.

Models and optimizers by the names of their parameters, so that the state fits any number of ranks. Anything else (a
scheduler, a sampler) as bytes, because the keys of its state may differ between saving and loading.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from elasticjob_runtime.training import channel


class Contents:
    """What belongs to one checkpoint. The tensors of `collect` are those of the models and optimizers, not copies."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        """Raises TypeError for a part that has no state, ValueError for an optimizer whose model is missing, and
        RuntimeError for a version of torch without FSDP2."""
        self._parts = dict(parts)
        self._models = {name: part for name, part in self._parts.items() if isinstance(part, torch.nn.Module)}
        if problem := missing_support(torch.__version__, _devices(self._models.values())):
            raise RuntimeError(problem)
        for name, part in self._parts.items():
            if not all(callable(getattr(part, method, None)) for method in ("state_dict", "load_state_dict")):
                raise TypeError(
                    f"{name!r} has no state_dict() and load_state_dict(): {type(part).__name__}. Put numbers into an "
                    "object that has both"
                )
        self._model_of = {
            name: self._find_model(name, part)
            for name, part in self._parts.items()
            if isinstance(part, torch.optim.Optimizer)
        }

    def collect(self) -> dict[str, Any]:
        return {name: self._state_of(name, part) for name, part in self._parts.items()}

    def collect_for(self, saved: Collection[str]) -> dict[str, Any]:
        """The same, as far as it has been saved, to be overwritten. An optimizer has no state of a parameter that never
        had a gradient, or whose group needs none (SGD without momentum). saved: the keys of the saved state."""
        state = self.collect()
        prefixes = {key[:end] for key in saved for end, letter in enumerate(key) if letter == "."}
        for name in self._model_of:
            states = state[name]["state"]
            found = {key for key in states if f"{name}.state.{key}" in prefixes}
            if found:  # none: of another optimizer, which is an error when it is loaded
                state[name]["state"] = {key: value for key, value in states.items() if key in found}
        return state

    def apply(self, state: Mapping[str, Any]) -> None:
        """state: from `collect_for`, with its tensors overwritten."""
        for name, part in self._parts.items():
            if name in self._models:
                set_model_state_dict(part, state[name])
            elif name in self._model_of:
                options = StateDictOptions(strict=False)  # what was not saved has no state
                set_optimizer_state_dict(self._model_of[name], part, state[name], options=options)
            else:
                part.load_state_dict(_from_bytes(state[name]))

    def _state_of(self, name: str, part: Any) -> Any:
        if name in self._models:
            return get_model_state_dict(part)
        if name in self._model_of:
            with channel.muted():  # takes a first step without gradients, if none was taken
                return get_optimizer_state_dict(self._model_of[name], part)
        return _to_bytes(part.state_dict())

    def _find_model(self, name: str, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        owners = {
            key: model
            for key, model in self._models.items()
            if any(id(parameter) in wanted for parameter in model.parameters())
        }
        known = {id(parameter) for model in owners.values() for parameter in model.parameters()}
        if not wanted <= known:
            raise ValueError(
                f"the optimizer {name!r} has parameters of a model that is not given: its state is saved by their names"
            )
        return next(iter(owners.values())) if len(owners) == 1 else torch.nn.ModuleDict(owners)


def missing_support(version: str, devices: Collection[str]) -> str:
    """Why sharded models cannot train with this version of torch; empty: they can. devices: of their parameters. Pure.

    >>> missing_support("2.6.0+cu124", {"cuda"}), missing_support("2.15.0", {"cpu"})
    ('', '')
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (2, 6):
        return f"sharded models (FSDP2) need torch 2.6 or newer, and this is torch {version}"
    if (major, minor) < (2, 7) and "cpu" in devices:
        return f"sharded models (FSDP2, tensor parallel) on CPUs need torch 2.7 or newer, and this is torch {version}"
    return ""


def _devices(models: Iterable[torch.nn.Module]) -> set[str]:
    """Of sharded parameters."""
    return {
        parameter.device.type for model in models for parameter in model.parameters() if isinstance(parameter, DTensor)
    }


def is_sharded(part: Any) -> bool:
    """Whether a rank has only a part of this model's state."""
    return isinstance(part, torch.nn.Module) and any(isinstance(parameter, DTensor) for parameter in part.parameters())


def _to_bytes(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _from_bytes(data: bytes) -> Any:
    """Raises pickle.UnpicklingError for anything but plain data and tensors."""
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # its message advises to trust the file
        raise pickle.UnpicklingError(
            "what is neither a model nor an optimizer there is not plain data (numbers, strings, tensors, and lists, "
            "tuples and dicts of them)"
        ) from None
