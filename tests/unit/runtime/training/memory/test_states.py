"""Any state comes back as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elasticjob_runtime.training.memory import copying
from elasticjob_runtime.training.memory.copying import TensorPart, Window, windows
from elasticjob_runtime.training.memory.format import PIECE
from elasticjob_runtime.training.memory.structure import Slot, UnsupportedStateError, take_apart

from tests.unit.runtime.training.memory.states import assert_equal, every_kind, header, loaded, recovered, written

pytestmark = pytest.mark.torch


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "threads", lambda: request.param)


@pytest.mark.usefixtures("threads")
def test_a_state_comes_back_unchanged() -> None:
    state = every_kind()
    assert_equal(state, loaded(written(state)))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [0, 1, 7, 8, PIECE - 64, PIECE - 1, PIECE, PIECE + 1, 7 * PIECE + 3])
def test_sizes_around_the_pieces_of_the_checksum(size: int) -> None:
    state = [torch.randint(0, 255, (size,), dtype=torch.uint8), torch.ones(3), torch.rand(PIECE // 2)]
    assert_equal(state, loaded(written(state)))


def test_what_is_loaded_does_not_change_with_the_next_snapshots() -> None:
    pair = written({"a": torch.ones(1000)})
    found = recovered(pair)
    assert found is not None
    before = found.load()
    for step in (2, 3):
        pair.write({"a": torch.full((1000,), step)}, header(step))
    assert before is not None
    assert torch.equal(before["a"], torch.ones(1000))
    assert found.load() is None, "its writer has replaced it"


def test_each_tensor_has_memory_of_its_own() -> None:
    """torch.save writes the whole storage behind a tensor."""
    state = loaded(written({"large": torch.ones(100_000), "small": torch.ones(1)}))
    assert state["small"].untyped_storage().nbytes() == 4


def test_tied_weights_stay_tied_and_take_memory_once() -> None:
    weight = torch.rand(1000)
    found = recovered(written({"encoder": weight, "decoder": weight, "other": torch.rand(1000)}))
    assert found is not None
    assert found.header.layout.payload_size < 3 * 4000
    state = found.load()
    assert state is not None
    assert state["encoder"] is state["decoder"]


class Other:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Other)

    __hash__ = None  # type: ignore[assignment]


def test_objects_are_loaded_only_if_the_caller_trusts_them() -> None:
    found = recovered(written({"a": Other()}))
    assert found is not None
    assert found.load() == {"a": Other()}
    assert found.load(any_object=False) is None


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"a": lambda: 0}, "cannot be pickled"),
        ({"a": torch.zeros(3).to_sparse()}, "without plain memory"),
        ({"a": torch.zeros(3, device="meta")}, "without plain memory"),
        ({"a": torch.zeros(3).as_subclass(type("Sharded", (torch.Tensor,), {}))}, "a Sharded"),
    ],
    ids=["a function", "a sparse tensor", "no memory", "a subclass"],
)
def test_a_state_that_cannot_be_kept_is_refused_in_a_sentence(state: Any, why: str) -> None:
    with pytest.raises(UnsupportedStateError, match=why):
        take_apart(state)


def slot(offset: int, size: int) -> Slot:
    return Slot(offset, size, (size,), "uint8", "cpu")


@pytest.mark.parametrize(
    ("slots", "found"),
    [
        ([], []),
        ([slot(0, 0)], []),
        ([slot(0, 64)], [Window(0, 64, (TensorPart(0, 0, 64, 0),))]),
        (
            [slot(0, 150), slot(192, 10)],
            [
                Window(0, 100, (TensorPart(0, 0, 100, 0),)),
                Window(100, 100, (TensorPart(0, 100, 50, 0), TensorPart(1, 0, 8, 92))),
                Window(200, 2, (TensorPart(1, 8, 2, 0),)),
            ],
        ),
        (
            [slot(300, 10), slot(320, 10)],
            [Window(300, 30, (TensorPart(0, 0, 10, 0), TensorPart(1, 0, 10, 20)))],
        ),
    ],
    ids=["nothing", "an empty tensor", "one", "across windows", "an offset"],
)
def test_windows_cover_all_tensors(slots: list[Slot], found: list[Window]) -> None:
    assert list(windows(slots, 100)) == found


@pytest.mark.gpu
def test_a_state_on_a_gpu_comes_back_unchanged() -> None:
    state: dict[str, Any] = {
        "cpu": torch.rand(1000),
        "gpu": [torch.rand(size, device="cuda") for size in (1, 1000, 3 * copying.STAGE // 4, 77)],
        "transposed": torch.rand(300, 200, device="cuda").t(),
    }
    found = recovered(written(state))
    assert found is not None
    again = found.load(None)
    assert again is not None
    assert again["gpu"][0].device == state["gpu"][0].device
    for first, second in zip(again["gpu"], state["gpu"], strict=True):
        assert torch.equal(first, second)
    assert torch.equal(again["transposed"], state["transposed"])
    assert torch.equal(again["cpu"], state["cpu"])


def test_tensors_that_come_through_pinned_buffers_arrive_unchanged() -> None:
    """The path of a GPU's tensors, with two buffers of the CPU that are smaller than the state."""
    parts = take_apart([torch.rand(900_000), torch.rand(3), torch.rand(500_000), torch.zeros(0), torch.rand(77)])
    size = -(-parts.payload_size // 8) * 8
    payload, sums = torch.zeros(size, dtype=torch.uint8), torch.zeros(-(-size // PIECE), dtype=torch.int64)
    target = copying.Payload(payload, sums)
    buffers = [torch.empty(PIECE, dtype=torch.uint8) for _ in range(2)]
    target._write_staged(windows(parts.slots, PIECE), [item.view(torch.uint8) for item in parts.tensors], buffers)
    assert target.is_intact()
    for tensor, place in zip(parts.tensors, parts.slots, strict=True):
        assert torch.equal(target.tensor(place), tensor)
