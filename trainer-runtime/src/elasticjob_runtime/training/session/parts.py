"""What the user gave to the session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from elasticjob_runtime.training.session import torch_private, torch_sharding
from elasticjob_runtime.training.session.transfer import Shard

LARGE_BUFFER = 1 << 18
"""Bytes from which a buffer is copied at each step only if steps change it: a mask or a table of embeddings does not
change, and may be larger than the model."""


class Parts:
    """What the user gave to the session, by name."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = {name: torch_private.not_compiled(part) for name, part in parts.items()}
        for name, part in self._parts.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(part, method, None)):
                    raise TypeError(f"ElasticSession: {name} has no {method}(): {type(part).__name__}")
            if isinstance(part, torch.optim.Optimizer) and not torch_private.has_hooks(part):
                raise TypeError(
                    f"ElasticSession: {name} wraps another optimizer ({type(part).__name__}): give the session that "
                    "one. With Accelerate, use ElasticAccelerator and its session()"
                )
        self.ddp = [part for part in self._parts.values() if isinstance(part, DistributedDataParallel)]
        self.modules = [part for part in self._parts.values() if isinstance(part, torch.nn.Module)]
        self.optimizers = [part for part in self._parts.values() if isinstance(part, torch.optim.Optimizer)]
        self.others = [
            part
            for part in self._parts.values()
            if not isinstance(part, (DistributedDataParallel, torch.optim.Optimizer))
        ]
        """Schedulers, gradient scalers, averaged models: what changes in the rest of a step."""
        self.spare: dict[int, dict[Any, Any]] = {}
        """Optimizer -> a state that counts for nothing, in whose memory one can be received."""
        self._all: list[torch.nn.Module] = []
        self._children: list[torch.nn.Module | None] | None = None
        """Those of `_all` when it was made."""
        self._constant: dict[int, tuple[int, int]] = {}
        """Large buffers that no step has changed so far: id -> state, see `mark`."""
        self._sharded: bool | None = None
        self.changes_parameters = False
        """Whether a step has changed parameters before its optimizer did: with sharpness-aware minimization, say."""

    @property
    def named(self) -> Mapping[str, Any]:
        return self._parts

    def collect(self) -> dict[str, Any]:
        return {name: _unwrapped(part).state_dict() for name, part in self._parts.items()}

    def apply(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if it is of other parts than these."""
        if state.keys() != self._parts.keys():
            raise ValueError(f"the state has {sorted(state)}, this session {sorted(self._parts)}")
        for name, part in self._parts.items():
            if isinstance(part, torch.optim.Optimizer):
                _check_groups(name, state[name]["param_groups"], part.param_groups)
            if not _is_its_own(state[name], part):
                _unwrapped(part).load_state_dict(_with_own_sharding(state[name], _unwrapped(part)))
        self.forget_constants()

    @property
    def are_sharded(self) -> bool:
        """Whether a model is, by FSDP2 or FSDP1. By name: importing the classes takes longer than a restart may."""
        return any(
            type(each).__name__ in ("DTensor", "FullyShardedDataParallel")
            for module in self.modules
            for each in (*module.modules(), *module.parameters())
        )

    def layout(self, *, shards: bool = False) -> str:
        """Differs if two processes have different models; with `shards`, also if their parts of them differ."""
        digest = hashlib.blake2b(digest_size=8)
        for module in self.modules:
            for name, tensor in (*_unwrapped(module).named_parameters(), *_unwrapped(module).named_buffers()):
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad};".encode())
                if shards:
                    digest.update(f"{tuple(torch_sharding.local(tensor).shape)};".encode())
        return digest.hexdigest()

    def sharded_layouts(self) -> dict[tuple[int, ...], str]:
        """For each mesh, as the ranks in it: a digest of what is sharded over it, in order. All of these ranks must
        have the same one."""
        found: dict[tuple[int, ...], Any] = {}

        def add(mesh: Any, text: str) -> None:
            found.setdefault(torch_sharding.mesh_ranks(mesh), hashlib.blake2b(digest_size=8)).update(text.encode())

        for model in self.modules:
            for name, parameter in model.named_parameters():
                if torch_sharding.is_dtensor(parameter):
                    sharding: Any = parameter
                    text = f"{name} {tuple(parameter.shape)} {parameter.dtype} {sharding.placements};"
                    add(sharding.device_mesh, f"{text}{parameter.requires_grad};")
            for name, module in model.named_modules():
                if torch_sharding.is_fsdp_module(module):
                    for mesh in torch_sharding.fsdp_meshes(module):
                        add(mesh, f"{name};")
        return {ranks: digest.hexdigest() for ranks, digest in found.items()}

    def memory(self) -> set[int]:
        """Where the tensors of models and optimizers are."""
        of_models = (parameter for module in self.modules for parameter in (*module.parameters(), *module.buffers()))
        of_optimizers = (value for part in self.optimizers for state in part.state.values() for value in state.values())
        found = (
            tensor for tensor in (*of_models, *of_optimizers) if type(tensor) in (torch.Tensor, torch.nn.Parameter)
        )
        return {tensor.untyped_storage().data_ptr() for tensor in found} - {0}

    def all_modules(self) -> Sequence[torch.nn.Module]:
        """The models and all modules in them. Asked at each step: `Module.modules()` takes 5 ms for 1,000 modules."""
        children = [child for module in self._all for child in module._modules.values()]
        if self._children != children:
            self._all = list(dict.fromkeys(module for model in self.modules for module in model.modules()))
            self._children = [child for module in self._all for child in module._modules.values()]
        return self._all

    def buffers(self) -> Iterable[torch.Tensor]:
        """And parameters that no backward pass reaches, which a script may change itself: of a momentum encoder, say.
        Not those that are sharded, as FSDP replaces them while they are used."""
        modules = self.all_modules()
        found = [held for module in modules if module._buffers for held in module._buffers.values()]
        found += [
            parameter
            for module in modules
            for parameter in module._parameters.values()
            if parameter is not None and not parameter.requires_grad and not torch_sharding.is_dtensor(parameter)
        ]
        return dict.fromkeys(buffer for buffer in found if buffer is not None)  # modules may share one

    def is_constant(self, buffer: torch.Tensor) -> bool:
        """Whether no step has changed this buffer, as far as it is known. To be asked at each step."""
        if buffer.nbytes < LARGE_BUFFER or buffer.is_inference():
            return False
        before, now = self._constant.get(id(buffer)), mark(buffer)
        self._constant[id(buffer)] = now if before in (None, now) else CHANGES
        return before == now

    def versions(self, *, states: bool = False) -> tuple[int, int]:
        """Differs after each change of a parameter that an optimizer has, unless it is hidden from torch, as one by
        `parameter.data.add_()` is; `parameter.data = other` is not. states: or of a tensor of its state."""
        tensors = self._optimized()
        if states:
            values = [value for one in self.optimizers for state in one.state.values() for value in state.values()]
            tensors += [value for value in values if isinstance(value, torch.Tensor)]
        # Written for speed, as this is done twice in each step. FSDP moves its parameters itself.
        places = [] if self._moves() else [tensor.data_ptr() for tensor in tensors]
        return sum([tensor._version for tensor in tensors]), sum(places)

    def _optimized(self) -> list[torch.Tensor]:
        return [param for one in self.optimizers for group in one.param_groups for param in group["params"]]

    def _moves(self) -> bool:
        if self._sharded is None:
            self._sharded = self.are_sharded
        return self._sharded

    def trained(self) -> list[bool]:
        """Of each parameter that an optimizer has, whether it is trained, and not frozen."""
        return [parameter.requires_grad for parameter in self._optimized()]

    def train(self, trained: Sequence[bool]) -> None:
        """trained: see `trained`; empty: not known."""
        for parameter, wanted in zip(self._optimized(), trained, strict=bool(trained)):
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)

    def forget_constants(self) -> None:
        """Something else than a step has changed buffers."""
        self._constant.clear()

    def use_spares(self) -> None:
        """The state of optimizers that have none is about to be received."""
        for optimizer in self.optimizers:
            if not optimizer.state:
                optimizer.state.update(self.spare.get(id(optimizer), {}))
        self.spare.clear()

    def forget_gradients(self) -> None:
        for module in self.modules:
            for parameter in module.parameters():
                parameter.grad = None


CHANGES = (-1, -1)


def mark(buffer: torch.Tensor) -> tuple[int, int]:
    """Differs after each change of `buffer`, unless it is hidden from torch."""
    return buffer._version, buffer.data_ptr()


def _unwrapped(part: Any) -> Any:
    return part.module if isinstance(part, DistributedDataParallel) else part


def _is_its_own(state: Any, part: Any) -> bool:
    """Whether `state` is in the memory of a module's own, as after a transfer into it."""
    if not isinstance(part, torch.nn.Module):
        return False
    own = _unwrapped(part).state_dict()
    return own.keys() == state.keys() and all(
        isinstance(value, torch.Tensor)
        and isinstance(state[name], torch.Tensor)
        and value.numel()
        and torch_sharding.local(value).data_ptr() == torch_sharding.local(state[name]).data_ptr()
        for name, value in own.items()
    )


def _with_own_sharding(state: Any, part: Any) -> Any:
    """`state` of a part of the same replica index, with its shards as DTensors again."""
    if isinstance(part, torch.optim.Optimizer):
        parameters = dict(enumerate(parameters_of(part)))
        of_parameters = {
            number: {key: _sharded_as(value, parameters[number]) for key, value in values.items()}
            for number, values in state["state"].items()
        }
        return {**state, "state": of_parameters}
    return _sharded_as(state, part.state_dict())


def _check_groups(name: str, given: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> None:
    sizes, own_sizes = [[len(group["params"]) for group in groups] for groups in (given, own)]
    if sizes != own_sizes:
        raise ValueError(
            f"{name} has groups of {sizes} parameters in the state, and of {own_sizes} in this process: add all groups "
            "of parameters before the session's first use, and freeze those that are not trained yet"
        )


def _sharded_as(value: Any, like: Any) -> Any:
    """Raises ValueError for a shard of which this process has no tensor."""
    if isinstance(value, Shard):
        if not isinstance(like, torch.Tensor):
            raise ValueError("the state has a sharded tensor that this process's part of it does not have")
        return torch_sharding.as_dtensor(value.local.to(torch_sharding.local(like).device), like)
    if isinstance(value, Mapping):
        own = like if isinstance(like, Mapping) else {}
        return {key: _sharded_as(found, own.get(key)) for key, found in value.items()}
    if type(value) in (list, tuple):
        same = like if type(like) is type(value) and len(like) == len(value) else [None] * len(value)
        return type(value)(_sharded_as(found, mine) for found, mine in zip(value, same, strict=True))
    return value


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
