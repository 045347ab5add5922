"""load_checkpoint and save_checkpoint with real torch states."""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
from elasticjob_runtime.training import (
    CheckpointError,
    background,
    checkpoint,
    load_checkpoint,
    progress,
    save_checkpoint,
)
from elasticjob_runtime.training.checkpoint import steps

from tests.unit.runtime.training.checkpoint.conftest import full_disk

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> progress._State:
    """What this process knows about its checkpoints."""
    state = progress._State()
    monkeypatch.setattr(progress, "_state", state)
    return state


def trained() -> dict[str, Any]:
    """Model and optimizer after one step, as a script saves them."""
    import torch

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    sampler = {"seed": 0, "epoch": 1, "consumed": 64, "dataset_size": 1000}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sampler": sampler, "step": 1}


def test_a_save_in_the_background_has_the_state_of_its_step(tmp_path: pathlib.Path) -> None:
    import torch

    count = torch.zeros(3)
    save_checkpoint(tmp_path, {"count": count, "step": 1}, block=False)
    count += 1
    save_checkpoint(tmp_path, {"count": count, "step": 2})  # waits for it
    assert steps(tmp_path) == [1, 2]
    assert torch.load(min(tmp_path.glob("*.ckpt")))["count"].tolist() == [0.0] * 3


def test_an_error_in_the_background_is_raised_by_the_next_save(tmp_path: pathlib.Path) -> None:
    (tmp_path / "c").write_text("a file")
    save_checkpoint(tmp_path / "c", {"step": 1}, block=False)
    (tmp_path / "d").mkdir()
    with pytest.raises(CheckpointError, match="Cannot write"):
        save_checkpoint(tmp_path / "d", {"step": 2}, block=False)
    save_checkpoint(tmp_path / "d", {"step": 3}, block=False)
    save_checkpoint(tmp_path / "d", {"step": 4})
    assert steps(tmp_path / "d") == [3, 4], "it is raised once"


def test_a_save_whose_wait_a_signal_ends_keeps_its_state(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    may_write, save = threading.Event(), checkpoint.save

    def save_later(*arguments: Any, **options: Any) -> pathlib.Path:
        may_write.wait(60.0)
        return save(*arguments, **options)

    def end(*_: object) -> None:
        raise SystemExit

    def save_until_a_signal() -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        save_checkpoint(tmp_path, {}, step=2)

    monkeypatch.setattr(checkpoint, "save", save_later)
    before = signal.signal(signal.SIGUSR1, end)
    try:
        save_checkpoint(tmp_path, {"count": torch.zeros(3)}, step=1, block=False)
        with pytest.raises(SystemExit):
            save_until_a_signal()
    finally:
        signal.signal(signal.SIGUSR1, before)
    threading.Timer(0.2, may_write.set).start()
    save_checkpoint(tmp_path, {"count": torch.ones(3)}, step=3, block=False)
    save_checkpoint(tmp_path, {}, step=4)
    assert steps(tmp_path) == [1, 3, 4]
    assert torch.load(min(tmp_path.glob("*.ckpt")))["count"].tolist() == [0.0] * 3


def test_a_forked_child_does_not_wait_for_its_parents_save() -> None:
    may_end = threading.Event()
    save = background.begin(1, lambda: may_end.wait(60.0))
    child = multiprocessing.get_context("fork").Process(target=save.result)
    child.start()
    child.join(30.0)
    may_end.set()
    save.result()
    assert child.exitcode == 0


ENDS = """
    import os, sys, time, torch
    from elasticjob_runtime.training import save_checkpoint

    save_checkpoint(sys.argv[1], {"weight": torch.zeros(10_000_000)}, step=2, block=False)
"""


def test_a_process_that_ends_waits_for_its_save_in_the_background(tmp_path: pathlib.Path) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(ENDS), str(tmp_path)], check=True, timeout=100)
    assert steps(tmp_path) == [2]


def test_a_process_whose_last_save_failed_ends_with_an_error_that_launchers_find(tmp_path: pathlib.Path) -> None:
    (tmp_path / "c").write_text("a file")
    file = tmp_path / "error.json"
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ENDS), str(tmp_path / "c")],
        check=False, timeout=100, env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(file)},
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Cannot write the checkpoint" in json.loads(file.read_text())["message"]["message"]


def test_saves_without_a_step_get_numbers_of_their_own_also_in_the_background(tmp_path: pathlib.Path) -> None:
    for _ in range(3):
        save_checkpoint(tmp_path, {}, block=False)
    save_checkpoint(tmp_path, {})
    assert steps(tmp_path)[-1] == 4


def test_model_and_optimizer_are_restored_unchanged(
    tmp_path: pathlib.Path, state: progress._State, caplog: pytest.LogCaptureFixture
) -> None:
    saved = trained()
    save_checkpoint(tmp_path, saved)
    assert caplog.records == []
    assert state.last_checkpoint_step == 1
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    import torch

    torch.testing.assert_close(loaded["model"], saved["model"], rtol=0, atol=0)
    torch.testing.assert_close(loaded["optimizer"]["state"], saved["optimizer"]["state"], rtol=0, atol=0)
    assert loaded["sampler"] == saved["sampler"]


def test_a_resumed_worker_process_reports_the_checkpoint_it_loaded(
    tmp_path: pathlib.Path, state: progress._State
) -> None:
    save_checkpoint(tmp_path, {"a": 1}, step=40)
    state.last_checkpoint_step = None
    load_checkpoint(tmp_path)
    assert state.last_checkpoint_step == 40


def test_plain_torch_can_load_the_file(tmp_path: pathlib.Path) -> None:
    """No lock-in: the footer does not hide the ZIP file from torch.load."""
    import torch

    save_checkpoint(tmp_path, {"weight": torch.arange(10)}, step=3)
    for mmap in (False, True):
        loaded = torch.load(tmp_path / "step-000000000003.ckpt", mmap=mmap)
        assert loaded["weight"].tolist() == list(range(10))


def test_the_step_comes_from_the_argument_the_state_or_the_count(tmp_path: pathlib.Path) -> None:
    save_checkpoint(tmp_path, {"step": 7}, step=5)
    save_checkpoint(tmp_path, {"step": 6})
    save_checkpoint(tmp_path, [1.0, 2.0])
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"step-00000000000{step}.ckpt" for step in (5, 6, 7)]


def test_objects_that_torch_rejects_are_warned_about_when_saved(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, that the state cannot be loaded would only show at the first restart, hours later."""
    state = {"history": collections.Counter(a=1), "path": pathlib.PurePosixPath("x")}
    save_checkpoint(tmp_path, state, step=1)
    assert "pathlib.PurePosixPath" in caplog.text
    assert "weights_only=False" in caplog.text
    with pytest.raises(CheckpointError, match="weights_only=False"):
        load_checkpoint(tmp_path)
    assert load_checkpoint(tmp_path, weights_only=False) == state


class Exploit:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: pathlib.Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return pathlib.Path.touch, (self.mark,)


def test_a_checkpoint_that_another_user_wrote_runs_no_code(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "ran"
    save_checkpoint(tmp_path / "checkpoints", {"weights": Exploit(mark)}, step=1)
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "checkpoints")
    assert not mark.exists()
    load_checkpoint(tmp_path / "checkpoints", weights_only=False)
    assert mark.exists(), "the test's checkpoint is harmless"


def test_a_full_disk_is_reported_whatever_torch_raises(tmp_path: pathlib.Path) -> None:
    import torch

    save_checkpoint(tmp_path, {"step": 1})
    with full_disk(500_000), pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*File too large"):
        save_checkpoint(tmp_path, {"weight": torch.zeros(1_000_000)}, step=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001.ckpt"]
