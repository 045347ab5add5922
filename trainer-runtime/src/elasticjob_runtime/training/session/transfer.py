"""Sends the state from the processes that have it to those that do not."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from elasticjob_runtime.training.session import torch_sharding
from elasticjob_runtime.training.session.backend import OPERATION_TIMEOUT
from elasticjob_runtime.training.session.interruption import Interruption
from elasticjob_runtime.training.session.world import Agreement, SessionError

LAST_BYTES = 5.0
"""s for gloo to see that the connections of a world have ended. It takes milliseconds."""


def share_until(
    interruption: Interruption, group: Any, agreement: Agreement, rank: int, state: Any, *, into: Any = None
) -> Any | None:
    """See `share`. If it is interrupted, nothing arrives in `into` any more."""
    try:
        return interruption.run(lambda: share(group, agreement, rank, state, into=into))
    except Exception:
        if into is not None and not interruption.wait_for_silence(LAST_BYTES):
            raise SessionError("the state of another process may still arrive in this one's memory") from None
        raise


def share(group: Any, agreement: Agreement, rank: int, state: Any, *, into: Any = None) -> Any | None:
    """Sends `state` from the sources to the receivers, which get it returned; sources get None. Collective. Of a tensor
    that is sharded inside of a replica, this rank's part is sent; it arrives as a `Shard` if `into` has none.

    group: has `send` and `recv` between `rank` and the others.
    into: a state of the receiver itself. Tensors that are alike arrive in its own, which need no new memory and no
    copy; if this is interrupted, some of them are of one state and some of the other.
    """
    works: list[Any] = []
    try:
        result = None
        if rank in agreement.receivers:
            result = _receive(group, agreement, rank, into, works)
        elif rank in agreement.sources and agreement.receivers:
            _send(group, agreement, rank, state, works)
        for work in works:
            _finish(work)
    except RuntimeError:
        threading.Thread(target=_outlive, args=(works,), name="elasticjob-transfer", daemon=True).start()
        raise
    return result


def _send(group: Any, agreement: Agreement, rank: int, state: Any, works: list[Any]) -> None:
    """Adds what it begins to `works`."""
    tensors: list[torch.Tensor] = []
    structured = _take_out(state, tensors)
    if rank == agreement.sources[0]:
        structure = pickle.dumps(structured)
        for receiver in agreement.receivers:
            _finish(group.send([torch.tensor([len(structure)])], receiver, 0))
            _finish(group.send([torch.frombuffer(bytearray(structure), dtype=torch.uint8)], receiver, 0))
    for index, tensor in enumerate(tensors):
        of_this = [other for other in agreement.receivers if agreement.source_of(other, index, tensor.nbytes) == rank]
        if of_this and tensor.numel():
            data = _as_bytes(tensor.cpu().contiguous())
            works.extend(group.send([data], receiver, 0) for receiver in of_this)


def _receive(group: Any, agreement: Agreement, rank: int, into: Any, works: list[Any]) -> Any:
    """A state that is complete when `works` are, to which it adds."""
    length = torch.zeros(1, dtype=torch.int64)
    _finish(group.recv([length], agreement.sources[0], 0))
    structure = torch.empty(int(length), dtype=torch.uint8)
    _finish(group.recv([structure], agreement.sources[0], 0))
    slots: list[torch.Tensor] = []
    result = _put_in(pickle.loads(structure.numpy().tobytes()), slots, into)  # noqa: S301 from a rank of this job
    for index, tensor in enumerate(slots):
        if tensor.numel():
            works.append(group.recv([_as_bytes(tensor)], agreement.source_of(rank, index, tensor.nbytes), 0))
    return result


def _finish(work: Any) -> None:
    # Otherwise gloo waits as long as it may take to connect, whatever the group's timeout is by now. Never in pieces: a
    # wait that expires closes the connection.
    work.wait(datetime.timedelta(seconds=OPERATION_TIMEOUT))


def _outlive(works: Sequence[Any]) -> None:
    """gloo may have lost an operation. Giving it up would then block the thread that does, which may be any: errors
    and their frames form cycles, which the garbage collector ends."""
    for work in works:
        with contextlib.suppress(RuntimeError):
            work.wait()


@dataclasses.dataclass(frozen=True)
class Shard:
    """This rank's part of a tensor that is sharded inside of its replica."""

    local: torch.Tensor


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Stands for a tensor in the structure of a state."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    sharded: bool = False
    """Whether it is this rank's part of a larger one."""

    def describes(self, tensor: torch.Tensor) -> bool:
        """Whether gloo can receive straight into `tensor`."""
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and (tuple(tensor.shape), tensor.dtype, tensor.device.type) == (self.shape, self.dtype, "cpu")
            and tensor.is_contiguous()
        )


def _take_out(state: Any, tensors: list[torch.Tensor]) -> Any:
    """`state` with its tensors replaced by slots, and the tensors in order."""
    if isinstance(state, torch.Tensor):
        tensors.append(torch_sharding.local(state).detach())
        return _Slot(tuple(tensors[-1].shape), state.dtype, torch_sharding.is_dtensor(state))
    if isinstance(state, Mapping):
        return {key: _take_out(value, tensors) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_take_out(value, tensors) for value in state)
    return state


def _put_in(structure: Any, tensors: list[torch.Tensor], into: Any) -> Any:
    """The reverse, with empty tensors, or those of `into`."""
    if isinstance(structure, _Slot):
        local = torch_sharding.local(into).detach() if isinstance(into, torch.Tensor) else None
        if local is not None and structure.describes(local):
            tensors.append(local)
            return into.detach()
        tensors.append(torch.empty(structure.shape, dtype=structure.dtype))
        return Shard(tensors[-1]) if structure.sharded else tensors[-1]
    if isinstance(structure, Mapping):
        same = into if isinstance(into, Mapping) else {}
        return {key: _put_in(value, tensors, same.get(key)) for key, value in structure.items()}
    if type(structure) in (list, tuple):
        values = into if type(into) is type(structure) and len(into) == len(structure) else [None] * len(structure)
        return type(structure)(_put_in(value, tensors, own) for value, own in zip(structure, values, strict=True))
    return structure


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)  # gloo does not send every type
