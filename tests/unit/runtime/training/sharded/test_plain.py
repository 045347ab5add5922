"""Files in a shared directory are read without running code that their writer chose."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import pickle
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training import checkpoint, load_sharded_checkpoint, save_sharded_checkpoint
from elasticjob_runtime.training.sharded import plain

from tests.unit.runtime.training.sharded.worlds import Training, needs_fsdp2, run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


class Exploit:
    def __init__(self, mark: pathlib.Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.fspath(self._mark),)


class Part:
    """Neither a model nor an optimizer."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def save(path: pathlib.Path, state: Any, mark: pathlib.Path | None = None) -> None:
    state = state if mark is None else {"x": Exploit(mark)}
    save_sharded_checkpoint(path, {**Training().parts, "part": Part(state)}, step=1)


def load(path: pathlib.Path) -> Any:
    part = Part(None)
    load_sharded_checkpoint(path, {**Training().parts, "part": part})
    return {**part.state, "tensor": part.state["tensor"].tolist()}


@needs_fsdp2
@pytest.mark.parametrize("where", ["a part", "the metadata"])
def test_a_sharded_checkpoint_that_another_user_wrote_runs_no_code(tmp_path: pathlib.Path, where: str) -> None:
    mark, folder = tmp_path / "ran", tmp_path / "checkpoints"
    run(2, save, tmp_path, folder, {"tensor": torch.ones(1)}, mark if where == "a part" else None)
    if where == "the metadata":
        replace_metadata(folder, pickle.dumps(Exploit(mark)))
    for kind, message in run(2, load, tmp_path, folder):
        assert kind == "CheckpointError", message
        assert ("is not plain data" if where == "a part" else "it contains a posix.mkdir") in message
    assert not mark.exists()


def replace_metadata(folder: pathlib.Path, data: bytes) -> None:
    """With digests that are right."""
    (shards,) = folder.glob("*.shards-*")
    (shards / ".metadata").write_bytes(data)
    found = checkpoint.load(folder, lambda file: json.JSONDecoder().raw_decode(file.read().decode(errors="replace"))[0])
    assert found is not None
    manifest = found.state
    manifest["files"][".metadata"] = (len(data), hashlib.sha256(data).hexdigest())
    checkpoint.save(folder, 1, lambda file: file.write(json.dumps(manifest).encode()), keep=3)


@needs_fsdp2
def test_plain_data_and_tensors_of_other_parts_are_read(tmp_path: pathlib.Path) -> None:
    state = {"values": [1, 2.5, "x", None, True, (3, b"y")], "tensor": torch.arange(3)}
    run(2, save, tmp_path, tmp_path / "checkpoints", state)
    for found in run(1, load, tmp_path, tmp_path / "checkpoints"):
        assert found == {**state, "tensor": [0, 1, 2]}


@pytest.mark.parametrize("name", ["os.system", "_StorageInfo.__init__.__globals__", "FileSystemWriter", "pickle"])
def test_only_plain_classes_of_torch_are_found(name: str) -> None:
    reference = b"\x80\x04\x8c" + bytes([len(module := b"torch.distributed.checkpoint.filesystem")]) + module
    with pytest.raises(pickle.UnpicklingError, match=r"it contains a torch\.distributed"):
        plain.loads(reference + b"\x8c" + bytes([len(name)]) + name.encode() + b"\x93.")


@pytest.mark.parametrize("data", [b"", b"x", b"\x80\x04."])
def test_what_is_no_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        plain.loads(data)
