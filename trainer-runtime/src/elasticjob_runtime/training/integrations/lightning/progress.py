"""How far a trainer is: `LoopProgress`, for processes that join, and `TrainerUndo`, for what is interrupted and
repeated."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics import Metric

START = "before an epoch"
BATCH = "before a batch"
AFTER = "after a batch"
"""Its optimizer has stepped, and a validation may follow."""
END = "at the end of an epoch"

INSIDE = (BATCH, AFTER, END)
"""Places within an epoch that has begun."""

_FLAGS = ("_batches_that_stepped", "_skip_next_val", "_has_run")
"""What loops remember in addition to their counters."""
_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
"""The newest values, of the trainer's logger connector."""
_SAVED = ("dirpath", "_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
"""What ModelCheckpoint remembers in addition to its state. Ranks that differ here would not save together."""
_SCALARS = (int, float, str, type(None), torch.Tensor)


class LoopProgress:
    """Counters of the loops, states of callbacks, and which values are logged: a part of the session's state."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.place = START
        self.received = False
        """The state of another process, or a snapshot, was loaded. Who acts on it resets this."""

    @property
    def counters(self) -> list[dict[str, int]]:
        return [_scalars(counter) for counter in _counters(self._trainer.fit_loop)]

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "place": self.place,
            "counters": self.counters,
            "flags": [_named(loop, _FLAGS) for loop in _loops(trainer.fit_loop)],
            "should_stop": trainer.should_stop,
            "callbacks": call._call_callbacks_state_dict(trainer),
            "saved": [_named(checkpoint, _SAVED) for checkpoint in _checkpoints(trainer)],
            "metrics": {name: dict(getattr(trainer._logger_connector, name)) for name in _METRICS},
            "logged": [_describe(key, result) for key, result in trainer.fit_loop.epoch_loop._results.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        trainer = self._trainer
        self.place, self.received = state["place"], True
        for counter, values in zip(_counters(trainer.fit_loop), state["counters"], strict=True):
            vars(counter).update(values)
        for loop, values in zip(_loops(trainer.fit_loop), state["flags"], strict=True):
            vars(loop).update(values)
        trainer.should_stop = state["should_stop"]
        for checkpoint, values in zip(_checkpoints(trainer), state["saved"], strict=True):
            vars(checkpoint).update(values)  # first: ModelCheckpoint ignores a state of another folder
        call._call_callbacks_load_state_dict(trainer, {"callbacks": state["callbacks"]})
        for name, values in state["metrics"].items():
            setattr(trainer._logger_connector, name, dict(values))
        for description in state["logged"]:
            _register(trainer, description)


class Lasting:
    """Objects of a trainer that remain the same during a training. To look for them at each batch would take longer
    than to copy what they remember."""

    def __init__(self, trainer: Any) -> None:
        loop = trainer.fit_loop
        self.counting = [*_counters(loop), *_loops(loop), trainer._logger_connector]
        self.metrics = [module for module in trainer.lightning_module.modules() if isinstance(module, Metric)]


class TrainerUndo:
    """What Lightning and the user's module remember of something that may be interrupted: counters, logged values, and
    attributes of the module. `restore` puts it back, but for what the session restores."""

    def __init__(self, trainer: Any, lasting: Lasting, *, callbacks: bool = False) -> None:
        """callbacks: also those of callbacks and schedulers."""
        loop, module = trainer.fit_loop, trainer.lightning_module
        self._places: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (vars(each), _scalars(each)) for each in lasting.counting
        ]
        """Attributes, and what they were."""
        self._places.append((vars(module), _attributes(module)))
        self._contents: list[tuple[Any, Any]] = [
            (value, value.copy()) for value in vars(module).values() if type(value) in (list, dict)
        ]
        for results in (loop.epoch_loop._results, loop.epoch_loop.val_loop._results):
            self._contents.append((results, dict(results)))
            self._places += [(vars(result), _copies(vars(result))) for result in results.values()]
        self._places += [(vars(metric), _copies(vars(metric))) for metric in lasting.metrics]
        self._module, self._forward = module, vars(module).get("forward")
        self._loaded: list[tuple[Any, Any]] = []
        if callbacks:
            self._contents += [
                (values, dict(values)) for name in _METRICS for values in (getattr(trainer._logger_connector, name),)
            ]
            self._places += [(vars(callback), _attributes(callback)) for callback in trainer.callbacks]
            stateful = [*trainer.callbacks, *(config.scheduler for config in trainer.lr_scheduler_configs)]
            self._loaded = [(part, copy.deepcopy(state)) for part in stateful if (state := part.state_dict())]
            self._places += [
                (group, {name: value for name, value in group.items() if name != "params"})
                for optimizer in trainer.optimizers
                for group in optimizer.param_groups
            ]
            self._places.append((vars(trainer), {"should_stop": trainer.should_stop}))

    def restore(self) -> None:
        for part, state in self._loaded:
            part.load_state_dict(state)
        for attributes, before in self._places:
            attributes.update(before)
        for container, content in self._contents:
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)
        if self._forward is None:  # Lightning replaces it during a step
            vars(self._module).pop("forward", None)
        else:
            vars(self._module)["forward"] = self._forward


def _loops(loop: Any) -> Iterator[Any]:
    yield loop
    for attribute in vars(loop).values():
        if isinstance(attribute, _Loop):
            yield from _loops(attribute)


def _counters(loop: Any) -> Iterator[Any]:
    for inner in _loops(loop):
        for value in vars(inner).values():
            if isinstance(value, _BaseProgress):
                yield from _parts(value)


def _parts(counter: Any) -> Iterator[Any]:
    yield counter
    for value in vars(counter).values():
        if isinstance(value, _BaseProgress):
            yield from _parts(value)


def _scalars(each: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(each).items() if isinstance(value, (int, str, type(None)))}


def _attributes(each: Any) -> dict[str, Any]:
    """What a user may have set, and no other object knows."""
    return {
        name: value
        for name, value in vars(each).items()
        if isinstance(value, _SCALARS) and name not in ("_trainer", "training")
    }


def _named(each: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: vars(each)[name] for name in names if name in vars(each)}


def _copies(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Of a torchmetrics.Metric's attributes, which change in place."""
    copies = dict(attributes)
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor):
            copies[name] = value.detach().clone()
        elif type(value) is list:
            copies[name] = value.copy()
    return copies


def _checkpoints(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if isinstance(callback, ModelCheckpoint)]


def _describe(key: str, result: Any) -> dict[str, Any]:
    """What a process that joins must know of a logged value, to take part when ranks combine theirs."""
    fields = {field.name for field in dataclasses.fields(result.meta)} - {"_sync"}
    values = _named(result, ("value", "cumulated_batch_size")) if result.is_tensor else {}
    return {
        "key": key,
        "meta": {name: getattr(result.meta, name) for name in fields},
        "sync": {"_should": result.meta.sync.should, "rank_zero_only": result.meta.sync.rank_zero_only},
        "is_tensor": result.is_tensor,
        "has_reset": result.has_reset,
        "values": values,
    }


def _register(trainer: Any, description: Mapping[str, Any]) -> None:
    """Adds a logged value if this process has none, with no samples yet. One that ranks do not combine is copied."""
    results = trainer.fit_loop.epoch_loop._results
    if description["key"] in results:
        return
    meta = _Metadata(**description["meta"])
    meta.sync = _Sync(fn=trainer.strategy.reduce, **description["sync"])
    result = _ResultMetric(meta, description["is_tensor"])
    if not description["is_tensor"]:
        result.value = trainer.lightning_module.get_submodule(meta.metric_attribute)
    for name, value in description["values"].items():
        own = vars(result)[name].to(value.dtype)
        vars(result)[name] = own if meta.sync.should else value.clone()
    result.has_reset = description["has_reset"]
    results[description["key"]] = result
