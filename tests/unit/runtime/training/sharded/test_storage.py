"""Sharded checkpoints: saved by all ranks, loaded by any number of them, and never half."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import resource
import shutil
import signal
import threading
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from elasticjob_runtime.training import (
    CheckpointError,
    background,
    checkpoint,
    load_checkpoint,
    load_sharded_checkpoint,
    save_checkpoint,
    save_sharded_checkpoint,
)
from elasticjob_runtime.training.checkpoint import manifest
from elasticjob_runtime.training.sharded import saving, writing
from torch import nn

from tests.unit.runtime.training.sharded.worlds import Training, needs_fsdp2, run

pytestmark = [needs_fsdp2, pytest.mark.torch, pytest.mark.timeout(240)]


def train_and_save(path: pathlib.Path, *steps: int) -> dict[str, Any]:
    training = Training()
    for step in range(1, max(steps) + 1):
        training.step(step)
        if step in steps:
            save_sharded_checkpoint(path, training.parts, step=step)
    return training.whole()


def load(path: pathlib.Path) -> tuple[int | None, dict[str, Any]]:
    training = Training()
    return load_sharded_checkpoint(path, training.parts), training.whole()


def load_another_model(path: pathlib.Path) -> int | None:
    return load_sharded_checkpoint(path, Training(width=9).parts)


def shards(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path.glob("*.shards-*"))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_checkpoint_loads_at_any_world_size(tmp_path: pathlib.Path, size: int) -> None:
    saved = run(3, train_and_save, tmp_path, tmp_path / "c", 2)
    assert run(size, load, tmp_path, tmp_path / "c") == [(2, saved[0])] * size


def test_without_a_checkpoint_nothing_is_loaded(tmp_path: pathlib.Path) -> None:
    assert [step for step, _ in run(2, load, tmp_path, tmp_path / "c")] == [None, None]


def _cut(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def _flip(file: pathlib.Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Of steps 1 and 2."""
    directory = tmp_path_factory.mktemp("checkpoints")
    run(2, train_and_save, directory, directory / "c", 1, 2)
    return directory / "c"


@pytest.fixture
def copied(tmp_path: pathlib.Path, two_checkpoints: pathlib.Path) -> pathlib.Path:
    """The same, to damage."""
    return shutil.copytree(two_checkpoints, tmp_path / "c")


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata"])
@pytest.mark.parametrize("damage", [_cut, _flip, pathlib.Path.unlink], ids=["incomplete", "corrupt", "missing"])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(
    tmp_path: pathlib.Path, copied: pathlib.Path, name: str, damage: Callable[[pathlib.Path], None]
) -> None:
    damage(shards(copied)[1] / name)
    assert [step for step, _ in run(2, load, tmp_path, copied)] == [1, 1]


@pytest.mark.parametrize(
    "cut_off",
    [lambda folder: shutil.rmtree(shards(folder)[1]), lambda folder: max(folder.glob("*.ckpt")).unlink()],
    ids=["the folder of shards", "the manifest"],
)
def test_a_checkpoint_that_lacks_a_half_is_skipped(
    tmp_path: pathlib.Path, copied: pathlib.Path, cut_off: Callable[[pathlib.Path], None]
) -> None:
    cut_off(copied)
    assert [step for step, _ in run(2, load, tmp_path, copied)] == [1, 1]


@pytest.mark.parametrize("damage", [_cut, pathlib.Path.unlink], ids=["incomplete", "missing"])
def test_checkpoints_with_damaged_shards_do_not_displace_an_intact_one(
    tmp_path: pathlib.Path, damage: Callable[[pathlib.Path], None]
) -> None:
    """Only sizes are compared: to read the shards of all that are kept would hold up the first save after a restart."""
    run(1, train_and_save, tmp_path, tmp_path, 1, 2, 3)
    for folder in shards(tmp_path)[1:]:
        damage(folder / "__0_0.distcp")
    run(1, train_and_save, tmp_path, tmp_path, 4)
    assert checkpoint.steps(tmp_path) == [1, 4]
    shutil.rmtree(shards(tmp_path)[-1])
    run(1, train_and_save, tmp_path, tmp_path, 5)
    assert checkpoint.steps(tmp_path) == [1, 5]


def load_with_errors(path: pathlib.Path, times: int) -> int | None:
    """The storage of rank 1 fails so many times."""
    left = times
    real = manifest.digest_of

    def digest_of(file: pathlib.Path) -> tuple[int, str]:
        nonlocal left
        if dist.get_rank() == 1 and left:
            left -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(file)

    vars(manifest)["digest_of"] = digest_of  # in a process of its own
    return load(path)[0]


def test_an_error_of_one_rank_that_passes_costs_no_checkpoint(
    tmp_path: pathlib.Path, two_checkpoints: pathlib.Path
) -> None:
    assert run(2, load_with_errors, tmp_path, two_checkpoints, 2) == [2, 2]


def test_an_error_of_one_rank_that_stays_is_an_error_on_all_and_nothing_older_is_loaded(
    tmp_path: pathlib.Path, two_checkpoints: pathlib.Path
) -> None:
    for kind, message in run(2, load_with_errors, tmp_path, two_checkpoints, 1_000):
        assert kind == "CheckpointError"
        assert "Stale file handle (rank 1)" in message


def test_shards_are_kept_while_a_manifest_cannot_be_read(tmp_path: pathlib.Path) -> None:
    run(2, train_and_save, tmp_path, tmp_path / "c", 1, 2)
    manifest = min((tmp_path / "c").glob("*.ckpt"))
    manifest.rename(tmp_path / "elsewhere")
    manifest.symlink_to(tmp_path / "not-mounted")
    run(2, train_and_save, tmp_path, tmp_path / "c", 3)
    assert len(shards(tmp_path / "c")) == 3


def test_a_save_that_was_killed_leaves_no_shards_to_the_next(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next writes: the disk may have no room for both."""
    monkeypatch.setenv("ELASTICJOB_FENCE", "1.0.1")
    run(1, train_and_save, tmp_path, tmp_path / "c", 1)
    (tmp_path / "c" / "step-000000000002-1.shards-00ff").mkdir()
    saving._begin(tmp_path / "c", 3)
    assert [shard.name.partition(".")[0] for shard in shards(tmp_path / "c")] == [
        "step-000000000001-1",
        "step-000000000003-1",
    ]


def test_only_the_newest_checkpoints_are_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICJOB_FENCE", "1.0.1")
    run(2, train_and_save, tmp_path, tmp_path / "c", 1, 2, 3, 4, 5)
    kept = [
        json.JSONDecoder().raw_decode(file.read_bytes().decode("utf-8", "replace"))[0]
        for file in (tmp_path / "c").glob("*.ckpt")
    ]
    assert sorted(item["step"] for item in kept) == [3, 4, 5]
    assert {shard.name for shard in shards(tmp_path / "c")} == {item["folder"] for item in kept}


def test_a_group_that_was_replaced_can_no_longer_save(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICJOB_FENCE", "1.0.2")
    run(2, train_and_save, tmp_path, tmp_path / "c", 1)
    monkeypatch.setenv("ELASTICJOB_FENCE", "1.0.1")
    found = run(2, train_and_save, tmp_path, tmp_path / "c", 2)
    assert [kind for kind, _ in found] == ["FencedError"] * 2
    assert "a newer one, round 2" in found[1][1]


def train_and_save_in_background(path: pathlib.Path, *steps: int) -> dict[str, Any]:
    """What the state was after the last of `steps`; the training goes on."""
    training = Training()
    saved = {}
    for step in range(1, max(steps) + 1):
        training.step(step)
        if step in steps:
            save_sharded_checkpoint(path, training.parts, step=step, block=False)
            saved = training.whole()
    training.step(max(steps) + 1)
    return saved


def test_a_save_in_the_background_has_the_state_of_its_step(tmp_path: pathlib.Path) -> None:
    """The ranks end, and with them their process group, while it may be written."""
    saved = run(3, train_and_save_in_background, tmp_path, tmp_path / "c", 1, 2)
    assert run(2, load, tmp_path, tmp_path / "c") == [(2, saved[0])] * 2
    assert not list((tmp_path / "c").glob("*.shards-*/.written-*"))


def save_through_a_signal(path: pathlib.Path) -> dict[str, Any]:
    """A signal ends the wait for the first save. What the state was then."""
    training, may_write, write = Training(), threading.Event(), writing.Writing.write

    def write_later(own: writing.Writing) -> writing.Written:
        may_write.wait(60.0)
        return write(own)

    def end(*_: object) -> None:
        raise SystemExit

    with unittest.mock.patch.object(writing.Writing, "write", write_later):
        training.step(1)
        saved = training.whole()
        save_sharded_checkpoint(path / "c", training.parts, step=1, block=False)
        training.step(2)
        signal.signal(signal.SIGUSR1, end)
        with contextlib.suppress(SystemExit):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            save_sharded_checkpoint(path / "d", training.parts, step=2)
        threading.Timer(0.2, may_write.set).start()
        save_sharded_checkpoint(path / "d", training.parts, step=3, block=False)
    return saved


def test_a_save_whose_wait_a_signal_ends_keeps_its_state(tmp_path: pathlib.Path) -> None:
    saved = run(1, save_through_a_signal, tmp_path, tmp_path)
    assert run(1, load, tmp_path, tmp_path / "c") == [(1, saved[0])]


def train_with_a_full_disk(path: pathlib.Path) -> list[str]:
    """The disk of rank 1 is full at step 2. What the saves of steps 3 and 4 raise."""
    training = Training()
    errors = []
    for step in range(1, 5):
        if dist.get_rank() == 1:  # it writes its own files only, without the others
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 if step == 2 else -1, -1))
        try:
            save_sharded_checkpoint(path, training.parts, step=step, block=False)
        except CheckpointError as error:
            errors.append(f"{step}: {error}")
        if dist.get_rank() == 1:
            background.wait_for_saves(0.0, 60.0)
    return errors


def test_an_error_in_the_background_is_raised_on_all_ranks_at_the_next_save(tmp_path: pathlib.Path) -> None:
    found = run(2, train_with_a_full_disk, tmp_path, tmp_path / "c")
    assert found[0] == found[1]
    (error,) = found[0]
    assert error.startswith("3: Rank 1: Cannot write")
    assert [step for step, _ in run(2, load, tmp_path, tmp_path / "c")] == [4, 4]


@pytest.mark.parametrize("block", [True, False])
def test_on_a_full_disk_the_error_says_how_much_is_free(tight_disk: pathlib.Path, block: bool) -> None:
    parts = {"model": nn.Linear(886, 886)}  # 3 MiB
    for step in (1, 2):
        save_sharded_checkpoint(tight_disk, parts, step=step)

    def save() -> None:
        save_sharded_checkpoint(tight_disk, parts, step=3, block=block)
        saving.finish()

    with pytest.raises(CheckpointError, match=r"^Cannot write the checkpoint .*\(\d MiB are free\)\. Earlier"):
        save()
    assert load_sharded_checkpoint(tight_disk, parts) == 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_plain_dcp_reads_the_files(tmp_path: pathlib.Path) -> None:
    saved = run(2, train_and_save, tmp_path, tmp_path / "c", 1)[0]
    (folder,) = shards(tmp_path / "c")
    state = {"model": {"0.weight": torch.zeros(7, 4)}}
    dcp.load(state, checkpoint_id=folder)
    assert state["model"]["0.weight"].tolist() == saved["model.0.weight"]


def test_a_checkpoint_of_another_model_is_refused_in_one_sentence(
    tmp_path: pathlib.Path, two_checkpoints: pathlib.Path
) -> None:
    for kind, message in run(2, load_another_model, tmp_path, two_checkpoints):
        assert kind == "CheckpointError"
        assert "does not fit this state" in message
        assert "\n" not in message


def test_each_kind_of_checkpoint_names_the_function_that_loads_it(tmp_path: pathlib.Path) -> None:
    model = nn.Linear(2, 2)
    save_sharded_checkpoint(tmp_path / "sharded", {"model": model}, step=1)
    with pytest.raises(CheckpointError, match="is sharded: load it with load_sharded_checkpoint"):
        load_checkpoint(tmp_path / "sharded")
    save_checkpoint(tmp_path / "plain", {"step": 1})
    with pytest.raises(CheckpointError, match="not sharded: load it with load_checkpoint"):
        load_sharded_checkpoint(tmp_path / "plain", {"model": model})


def test_a_directory_that_cannot_be_written_is_an_error_on_all_ranks(tmp_path: pathlib.Path) -> None:
    (tmp_path / "c").write_text("a file")
    found = run(2, train_and_save, tmp_path, tmp_path / "c", 1)
    assert [kind for kind, _ in found] == ["CheckpointError"] * 2


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"step": 3}, TypeError, "'step' has no state_dict"),
        (
            {"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)},
            ValueError,
            "the optimizer 'optimizer' has parameters of a model that is not given",
        ),
    ],
)
def test_a_state_that_cannot_be_saved_is_refused(
    tmp_path: pathlib.Path, state: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        save_sharded_checkpoint(tmp_path, state, step=1)
