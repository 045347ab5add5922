"""The copy of a state that is saved in the background."""

from __future__ import annotations

import collections
import io
import multiprocessing
import os
import pathlib
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training import load_checkpoint, save_checkpoint
from elasticjob_runtime.training.checkpoint.save_load import _process
from elasticjob_runtime.training.memory.kept import KeptCopy

pytestmark = pytest.mark.torch


def state() -> dict[str, Any]:
    weights = torch.arange(12.0).view(3, 4)
    return {
        "weights": weights,
        "tied": weights,
        "transposed": weights.T,
        "parameter": torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
        "empty": torch.empty(0, 5),
        "flags": torch.tensor([True, False, True]),
        "part of a large one": torch.zeros(1 << 20)[5:7],
        "names": collections.OrderedDict(a=("b", 1, None)),
    }


def test_a_copy_is_what_the_state_was_whatever_happens_to_it_later() -> None:
    own = state()
    copy = KeptCopy().of(own)
    for tensor in own.values():
        if isinstance(tensor, torch.Tensor):
            tensor.detach().zero_()
    expected = state()
    assert copy is not None
    assert copy["names"] == expected.pop("names")
    for name, tensor in expected.items():
        assert torch.equal(copy[name], tensor), name
        assert (copy[name].dtype, type(copy[name])) == (tensor.dtype, type(tensor))
    assert copy["weights"] is copy["tied"]


def test_a_copy_is_saved_without_the_memory_around_it() -> None:
    file = io.BytesIO()
    torch.save(KeptCopy().of(state()), file)
    assert file.tell() < 10_000
    file.seek(0)
    assert torch.equal(torch.load(file)["transposed"], state()["transposed"])


def test_the_memory_of_a_copy_is_used_again_and_grows() -> None:
    kept = KeptCopy()
    first = kept.of({"a": torch.zeros(1000)})
    second = kept.of({"a": torch.ones(1000)})
    assert first is not None
    assert second is not None
    assert first["a"].data_ptr() == second["a"].data_ptr()
    larger = kept.of({"a": torch.arange(100_000)})
    assert larger is not None
    assert torch.equal(larger["a"], torch.arange(100_000))


def test_a_forked_child_does_not_write_into_its_parents_copy() -> None:
    kept = KeptCopy()
    own = kept.of({"a": torch.zeros(3)})
    child = multiprocessing.get_context("fork").Process(target=kept.of, args=({"a": torch.ones(3)},))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert own is not None
    assert own["a"].tolist() == [0.0] * 3


def test_a_state_with_other_objects_is_saved_in_the_background_too(tmp_path: pathlib.Path) -> None:
    assert KeptCopy().of({"a": pathlib.PurePosixPath("x")}) is None
    given = {"path": pathlib.PurePosixPath("x"), "sparse": torch.eye(3).to_sparse()}
    save_checkpoint(tmp_path, given, step=1, block=False)
    save_checkpoint(tmp_path, {}, step=2, block=False)
    assert _process.saving is not None
    _process.saving.wait()
    os.unlink(max(tmp_path.glob("*.ckpt")))
    loaded = load_checkpoint(tmp_path, weights_only=False)
    assert loaded is not None
    assert loaded["path"] == given["path"]
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(3))
