"""States to keep in memory, and a pair of buffers to keep them in."""

from __future__ import annotations

import collections
import os
from typing import Any

import torch
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.memory.buffers import Buffer
from elasticjob_runtime.training.memory.format import Header, Layout, purpose
from elasticjob_runtime.training.memory.pair import Pair, Recovered

PURPOSE = purpose("run", "test")


def header(step: int, round_number: int = 1, taken_at: float = 0.0) -> Header:
    return Header(
        fence=Fence(1, 0, round_number),
        step=step,
        purpose=PURPOSE,
        taken_at=taken_at or float(step),
        layout=Layout(structure_size=0, payload_size=0),
    )


def recovered(pair: Pair) -> Recovered | None:
    """As a later process finds it: with mappings of its own."""
    buffers = [Buffer(os.dup(fd)) for fd in pair.fds]
    found = [Recovered(buffer, header) for buffer in buffers if (header := buffer.header()) is not None]
    intact = [item for item in found if item.is_intact()]
    return max(intact, key=lambda item: item.header.age, default=None)


def loaded(pair: Pair) -> Any:
    """The state of the newest snapshot."""
    found = recovered(pair)
    assert found is not None
    return found.load()


def written(state: Any) -> Pair:
    pair = Pair.create()
    pair.write(state, header(1))
    return pair


def every_kind() -> dict[Any, Any]:
    """Each type of number, each shape, each container that a state may have."""
    weights = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "types": {
            str(dtype): torch.ones(5, dtype=dtype)
            for dtype in (
                torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
            )
        },
        "shapes": [torch.tensor(3.0), torch.zeros(0), torch.zeros(2, 0, 3), torch.ones(1, 2, 3, 4)],
        "views": (weights.t(), weights[:, 1], weights[1:]),
        "channels last": (torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "large": torch.arange(700_001, dtype=torch.int32),
        "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "ordered": collections.OrderedDict(b=torch.zeros(2), a=1),
        "numbers": [1, 2.5, True, None, "text", b"bytes", 10**30, {1, 2}, complex(1, 2)],
        "size": torch.Size([1, 2]),
        3: {"nested": [({"deep": (torch.full((2,), 7),)},)]},
    }  # fmt: skip


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert type(one) is type(other)
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        assert torch.equal(one.resolve_conj().view(-1).to(torch.complex128) if one.is_complex() else one.float(),
                           other.view(-1).to(torch.complex128) if other.is_complex() else other.float())  # fmt: skip
    elif isinstance(one, dict):
        assert type(one) is type(other)
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert (type(one), len(one)) == (type(other), len(other))
        for first, second in zip(one, other, strict=True):
            assert_equal(first, second)
    else:
        assert one == other
