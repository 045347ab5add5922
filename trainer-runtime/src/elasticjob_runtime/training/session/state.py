"""The training's state: collected, sent to other processes, applied; and what an interrupted step changed, put back."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elasticjob_runtime.training.session.world import Agreement


class Parts:
    """What the user gave to the session, by name."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = dict(parts)
        for name, part in self._parts.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(part, method, None)):
                    raise TypeError(f"ElasticSession: {name} has no {method}(): {type(part).__name__}")
        self.ddp = [part for part in self._parts.values() if isinstance(part, DistributedDataParallel)]
        self.modules = [part for part in self._parts.values() if isinstance(part, torch.nn.Module)]
        self.optimizers = [part for part in self._parts.values() if isinstance(part, torch.optim.Optimizer)]
        self.only_models_and_optimizers = len(self.modules) + len(self.optimizers) == len(self._parts)

    def collect(self) -> dict[str, Any]:
        return {name: _unwrapped(part).state_dict() for name, part in self._parts.items()}

    def apply(self, state: Mapping[str, Any]) -> None:
        if state.keys() != self._parts.keys():
            raise ValueError(f"the state has {sorted(state)}, this session {sorted(self._parts)}")
        for name, part in self._parts.items():
            _unwrapped(part).load_state_dict(state[name])

    def layout(self) -> str:
        """Differs if two processes have different models."""
        digest = hashlib.blake2b(digest_size=8)
        for module in self.modules:
            for name, tensor in (*_unwrapped(module).named_parameters(), *_unwrapped(module).named_buffers()):
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad};".encode())
        return digest.hexdigest()

    def forget_gradients(self) -> None:
        for module in self.modules:
            for parameter in module.parameters():
                parameter.grad = None


class Undo:
    """What a step changes before its optimizer steps: buffers and random states. Gradients are dropped, not restored: a
    step begins without any."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._buffers = [(buffer, buffer.clone()) for module in parts.modules for buffer in module.buffers()]
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None and "numpy.random" in sys.modules else None

    def restore(self) -> None:
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        self._parts.forget_gradients()


def share(agreement: Agreement, rank: int, state: Any) -> Any | None:
    """Sends `state` from the donors to the receivers, which get it returned; donors get None. Collective."""
    if not agreement.receivers:
        return None
    first = agreement.donors[0]
    if rank in agreement.donors:
        tensors: list[torch.Tensor] = []
        outline = pickle.dumps(_take_out(state, tensors))
        if rank == first:
            for receiver in agreement.receivers:
                dist.send(torch.tensor([len(outline)]), receiver)
                dist.send(torch.frombuffer(bytearray(outline), dtype=torch.uint8), receiver)
        sent = [
            work
            for receiver in agreement.receivers
            for index, tensor in enumerate(tensors)
            if tensor.numel() and agreement.donor_of(receiver, index, tensor.nbytes) == rank
            if (work := dist.isend(_as_bytes(tensor), receiver)) is not None
        ]
        _wait(sent)
        return None
    if rank not in agreement.receivers:
        return None
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, first)
    received = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(received, first)
    received_outline = pickle.loads(received.numpy().tobytes())  # noqa: S301 from a rank of this job
    slots: list[torch.Tensor] = []
    result = _put_in(received_outline, slots)
    _wait(
        [
            work
            for index, tensor in enumerate(slots)
            if tensor.numel()
            if (work := dist.irecv(_as_bytes(tensor), agreement.donor_of(rank, index, tensor.nbytes))) is not None
        ]
    )
    return result


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Stands for a tensor in the outline of a state."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _take_out(state: Any, tensors: list[torch.Tensor]) -> Any:
    """`state` with its tensors replaced by slots, and the tensors in order."""
    if isinstance(state, torch.Tensor):
        tensors.append(state.detach().cpu().contiguous())
        return _Slot(tuple(state.shape), state.dtype)
    if isinstance(state, Mapping):
        return {key: _take_out(value, tensors) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_take_out(value, tensors) for value in state)
    return state


def _put_in(outline: Any, tensors: list[torch.Tensor]) -> Any:
    """The reverse, with empty tensors."""
    if isinstance(outline, _Slot):
        tensors.append(torch.empty(outline.shape, dtype=outline.dtype))
        return tensors[-1]
    if isinstance(outline, Mapping):
        return {key: _put_in(value, tensors) for key, value in outline.items()}
    if type(outline) in (list, tuple):
        return type(outline)(_put_in(value, tensors) for value in outline)
    return outline


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)  # gloo does not send every type


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def _unwrapped(part: Any) -> Any:
    return part.module if isinstance(part, DistributedDataParallel) else part
