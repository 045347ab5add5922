"""A state as a structure, which is pickled, and its tensors, which are copied as they are."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from elasticjob_runtime.training.memory.format import PIECE, aligned

_PLAIN = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "Counter"): collections.Counter,
    ("collections", "defaultdict"): collections.defaultdict,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    **{("builtins", name): getattr(builtins, name) for name in ("set", "frozenset", "bytearray", "complex", "slice")},
}
"""What a state may contain without running code of its own when it is loaded."""


class UnsupportedStateError(Exception):
    """This state cannot be held in memory. The message, the second half of a sentence, says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor is in the payload."""

    offset: int
    size: int
    """Bytes."""
    shape: tuple[int, ...]
    dtype: str
    """Its name in torch: float32."""
    device: str
    """Where it was, as in torch.device: cuda:0."""


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    data: bytes
    tensors: Sequence[torch.Tensor]
    """Contiguous, on their devices. Those of the CPU come first."""
    slots: Sequence[Slot]
    """Of these tensors."""

    @property
    def near(self) -> int:
        """How many tensors are on the CPU."""
        return sum(tensor.device.type == "cpu" for tensor in self.tensors)

    @property
    def payload_size(self) -> int:
        return aligned(self.slots[-1].offset + self.slots[-1].size) if self.slots else 0


def take_apart(state: Any) -> Structure:
    """Raises UnsupportedStateError."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(state)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedStateError(f"it cannot be pickled: {error}") from error
    order = sorted(range(len(pickler.tensors)), key=lambda index: pickler.tensors[index].device.type != "cpu")
    slots: list[Slot] = []
    tensors: list[torch.Tensor] = []
    offset = 0
    for index in order:
        tensor = pickler.tensors[index].detach().contiguous().resolve_conj().resolve_neg()
        if tensors and tensors[-1].device.type == "cpu" != tensor.device.type:
            offset = aligned(offset, PIECE)  # those of a GPU come in pieces of their own
        name = str(tensor.dtype).removeprefix("torch.")
        slots.append(Slot(offset, tensor.nbytes, tuple(tensor.shape), name, str(tensor.device)))
        tensors.append(tensor)
        offset = aligned(offset + tensor.nbytes)
    places = {index: place for place, index in enumerate(order)}
    table = [(slot.offset, slot.size, slot.shape, slot.dtype, slot.device) for slot in slots]
    data = pickle.dumps((table, [places[index] for index in range(len(order))], file.getvalue()))
    return Structure(data, tensors, slots)


def put_together(data: bytes, tensor_of: Callable[[Slot], torch.Tensor], *, any_object: bool) -> Any:
    """The state again. any_object: also objects of any other class, as the process that took the snapshot made them.

    Raises UnsupportedStateError for such objects if `any_object` is False.
    """
    table, places, state = _Unpickler(data, lambda _number: torch.empty(0), any_object=False).load()
    slots = [Slot(offset, size, tuple(shape), dtype, device) for offset, size, shape, dtype, device in table]
    made: dict[int, torch.Tensor] = {}

    def tensor(number: int) -> torch.Tensor:
        place = places[number]
        if place not in made:
            made[place] = tensor_of(slots[place])
        return made[place]

    return _Unpickler(state, tensor, any_object=any_object).load()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise UnsupportedStateError(f"it contains a {type(value).__name__}")
        if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
            raise UnsupportedStateError(f"it contains a tensor without plain memory ({value.layout}, {value.device})")
        return self._number(value), value.requires_grad, isinstance(value, torch.nn.Parameter)

    def _number(self, tensor: torch.Tensor) -> int:
        """The same for the same memory: weights that are tied stay tied."""
        flags = (tensor.is_conj(), tensor.is_neg())
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), *flags)
        if key not in self._numbers:
            self._numbers[key] = len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[key]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensor: Callable[[int], torch.Tensor], *, any_object: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._tensor = tensor
        self._any_object = any_object

    def persistent_load(self, key: Any) -> torch.Tensor:
        number, requires_grad, is_parameter = key
        tensor = self._tensor(number)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_() if requires_grad else tensor

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return _PLAIN[module, name]
        if self._any_object:
            return super().find_class(module, name)
        raise UnsupportedStateError(f"it contains a {module}.{name}")
