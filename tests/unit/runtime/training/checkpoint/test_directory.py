"""Checkpoints in a directory: which is loaded, which are kept."""

from __future__ import annotations

import pathlib

from elasticjob_runtime.training import checkpoint

from tests.unit.runtime.training.checkpoint.steps import files_in, load_step, save


def test_a_saved_checkpoint_can_be_loaded(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "new" / "folders", 120)
    assert path.name == "step-000000000120.ckpt"
    assert load_step(path.parent) == 120


def test_without_a_checkpoint_training_starts_from_the_beginning(tmp_path: pathlib.Path) -> None:
    assert load_step(tmp_path) is None
    assert load_step(tmp_path / "missing") is None


def test_the_checkpoint_with_the_highest_step_is_loaded(tmp_path: pathlib.Path) -> None:
    save(tmp_path, 1000)
    save(tmp_path, 999)
    assert load_step(tmp_path) == 1000


def test_the_last_three_checkpoints_are_kept_by_default(tmp_path: pathlib.Path) -> None:
    for step in range(0, 100, 10):
        save(tmp_path, step)
    assert checkpoint.steps(tmp_path) == [70, 80, 90]
    save(tmp_path, 100, keep=1)
    assert checkpoint.steps(tmp_path) == [100]


def test_saving_a_step_again_replaces_it(tmp_path: pathlib.Path) -> None:
    save(tmp_path, 5)
    checkpoint.save(tmp_path, 5, lambda file: file.write(b"other"))
    found = checkpoint.load(tmp_path, lambda file: file.read())
    assert found is not None
    assert found.state == b"other"


def test_other_files_in_the_directory_are_left_alone(tmp_path: pathlib.Path) -> None:
    for name in ("notes.txt", "step-5.ckpt", "model.pt", ".hidden.tmp", "step-000000000007.ckpt.bak"):
        (tmp_path / name).write_text("mine")
    for step in range(5):
        save(tmp_path, step, keep=1)
    assert files_in(tmp_path) == sorted(
        [".hidden.tmp", "model.pt", "notes.txt", "step-000000000004.ckpt", "step-000000000007.ckpt.bak", "step-5.ckpt"]
    )
    assert load_step(tmp_path) == 4
