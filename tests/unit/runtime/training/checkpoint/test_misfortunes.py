"""What people, other jobs, tight disks and passing errors do to a directory of checkpoints: what was saved is loaded,
or an error or warning names it, and nothing intact is deleted while nothing newer is."""

from __future__ import annotations

import errno
import os
import pathlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training import checkpoint
from elasticjob_runtime.training.checkpoint import claims, reading
from elasticjob_runtime.training.checkpoint.order import Held, Kind, State, choose

from tests.unit.runtime.training.checkpoint.steps import load_step, save

EVER = 1_000


class Storage:
    """A file layer between this package and the disk. Its errors are raised here, because real ones need root."""

    def __init__(self) -> None:
        self._failures: dict[pathlib.Path, tuple[int, int]] = {}

    def fails(self, path: pathlib.Path, code: int, times: int = EVER) -> None:
        """Opening this file, or listing this directory, fails so often."""
        self._failures[path] = (code, times)

    def failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: os.PathLike[str], *args: Any) -> Any:
            code, left = self._failures.get(pathlib.Path(path), (0, 0))
            if left:
                self.fails(pathlib.Path(path), code, left - 1)
                raise OSError(code, os.strerror(code))
            return real(path, *args)

        return call


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    layer = Storage()
    monkeypatch.setattr("elasticjob_runtime.training.checkpoint.intact.open", layer.failing(open), raising=False)
    monkeypatch.setattr(os, "listdir", layer.failing(os.listdir))
    monkeypatch.setattr(reading, "PAUSE", 0.0)
    return layer


ERRORS = [errno.EIO, errno.ESTALE, errno.ENOENT, errno.EACCES]


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_an_error_that_passes_costs_no_checkpoint(tmp_path: pathlib.Path, storage: Storage, code: int) -> None:
    save(tmp_path, 1)
    storage.fails(save(tmp_path, 2), code, reading.TRIES - 1)
    assert load_step(tmp_path) == 2


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_an_error_that_stays_is_an_error_and_neither_an_older_checkpoint_nor_a_new_start(
    tmp_path: pathlib.Path, storage: Storage, code: int
) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    storage.fails(path, code)
    with pytest.raises(checkpoint.CheckpointError, match=f"Cannot read the checkpoint {path}: {os.strerror(code)}"):
        load_step(tmp_path)
    assert checkpoint.steps(tmp_path) == [1, 2]


@pytest.mark.usefixtures("storage")
def test_a_dangling_link_is_an_error(tmp_path: pathlib.Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-000000000002.ckpt").symlink_to("elsewhere")
    with pytest.raises(checkpoint.CheckpointError, match="No such file"):
        load_step(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EIO], ids=errno.errorcode.get)
def test_a_directory_that_its_parent_lists_is_not_taken_for_absent(
    tmp_path: pathlib.Path, storage: Storage, code: int
) -> None:
    assert load_step(tmp_path / "never" / "made") is None
    path = tmp_path / "checkpoints"
    save(path, 1)
    storage.fails(path, code, reading.TRIES - 1)
    assert load_step(path) == 1
    storage.fails(path, code)
    with pytest.raises(checkpoint.CheckpointError, match="Cannot read the checkpoint directory"):
        load_step(path)


def test_a_parent_that_may_not_be_listed_is_no_error(tmp_path: pathlib.Path, storage: Storage) -> None:
    storage.fails(tmp_path / "checkpoints", errno.ENOENT)
    storage.fails(tmp_path, errno.EACCES)
    assert load_step(tmp_path / "checkpoints") is None


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def test_a_parent_that_does_not_tell_is_an_error(tmp_path: pathlib.Path, storage: Storage, code: int) -> None:
    storage.fails(tmp_path / "checkpoints", errno.ENOENT)
    storage.fails(tmp_path, code)
    with pytest.raises(checkpoint.CheckpointError, match="Cannot read the checkpoint directory"):
        load_step(tmp_path / "checkpoints")


def test_a_checkpoint_that_is_no_longer_listed_is_passed_over(
    tmp_path: pathlib.Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    storage.fails(path, errno.ENOENT)
    monkeypatch.setattr(time, "sleep", lambda _: path.unlink(missing_ok=True))
    assert load_step(tmp_path) == 1


def test_a_checkpoint_that_cannot_be_read_does_not_stop_the_retention_of_others(
    tmp_path: pathlib.Path, storage: Storage
) -> None:
    path = save(tmp_path, 1)
    os.utime(path, (1, 1))  # another file than the one that this process has written
    storage.fails(path, errno.EIO)
    for step in range(2, 7):
        save(tmp_path, step, keep=2)
    assert checkpoint.steps(tmp_path) == [5, 6]


def test_removing_the_claims_takes_no_training_back(tmp_path: pathlib.Path, act_as: Callable[[str], None]) -> None:
    for round_ in range(1, 4):
        act_as(f"1.0.{round_}")
        save(tmp_path, 10 * round_)
    for path in tmp_path.glob(".claim-*"):
        path.unlink()
    act_as("1.0.9")
    save(tmp_path, 40)
    assert load_step(tmp_path) == 40


@pytest.mark.parametrize("position", range(0, 420, 7))
def test_one_flipped_bit_in_a_claim_does_not_let_a_replaced_group_save(
    tmp_path: pathlib.Path, act_as: Callable[[str], None], position: int
) -> None:
    act_as("1.0.2")
    save(tmp_path, 10)
    (path,) = tmp_path.glob(".claim-*")
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 4
    path.write_bytes(data)
    act_as("1.0.1")
    with pytest.raises(checkpoint.FencedError, match="round 2"):
        save(tmp_path, 11)


def test_a_group_that_saved_nothing_does_not_replace_what_an_earlier_one_has_in_memory(
    tmp_path: pathlib.Path, act_as: Callable[[str], None]
) -> None:
    act_as("1.0.1")
    save(tmp_path, 10)
    writer = checkpoint.this_writer()
    memory = State(step=10, kind=Kind.MEMORY, job=writer.owner, fence=writer.fence, claim=1)

    def newest() -> State:
        held = [Held(rank=0, state=item) for item in (memory, checkpoint.newest_state(tmp_path))]
        return choose(held, writer.owner, shared=True).state

    act_as("1.0.2")
    claims.claim_directory(tmp_path, claims.writer_of(os.environ))
    assert newest() == memory
    save(tmp_path, 11)
    assert newest().step == 11


def test_a_checkpoint_counts_as_the_group_that_saved_it_whichever_claims_the_directory_later(
    tmp_path: pathlib.Path, act_as: Callable[[str], None]
) -> None:
    act_as("1.0.1")
    save(tmp_path, 10)
    saved = checkpoint.newest_state(tmp_path)
    for fence in ("1.0.3", "1.0.4", "1.0.5"):
        act_as(fence)
        claims.claim_directory(tmp_path, claims.writer_of(os.environ))
        assert checkpoint.newest_state(tmp_path) == saved
    in_memory_of_another_rank = State(step=12, kind=Kind.MEMORY, job=saved.job, fence=Fence(1, 0, 2))
    held = [Held(rank=rank, state=item) for rank, item in enumerate((saved, in_memory_of_another_rank))]
    assert choose(held, saved.job, shared=False).ranks == (1,)


def test_a_checkpoint_that_a_person_puts_back_is_named_at_load_and_survives_the_next_save(
    tmp_path: pathlib.Path, act_as: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    act_as("1.0.1")
    path = save(tmp_path, 10)
    kept = path.read_bytes()
    path.unlink()
    save(tmp_path, 11)
    act_as("1.0.2")
    save(tmp_path, 12)
    path.write_bytes(kept)
    assert load_step(tmp_path) == 12
    assert f"Ignoring {path.name}" in caplog.text
    assert "--use FILE" in caplog.text
    save(tmp_path, 13)
    assert path.exists()


def test_a_newest_checkpoint_that_is_corrupt_is_skipped_for_memory_if_that_is_newer_than_the_one_before(
    tmp_path: pathlib.Path,
) -> None:
    save(tmp_path, 10)
    save(tmp_path, 12).write_bytes(b"incomplete")
    memory = [Held(rank=0, state=State(step=11, kind=Kind.MEMORY))]
    found = checkpoint.load(tmp_path, lambda _: "file", memory=memory, read_memory=lambda _: "memory")
    assert found is not None
    assert (found.step, found.state) == (11, "memory")


KILLED = """
    import os, sys
    from elasticjob_runtime.training import checkpoint

    def write(file):
        file.write(bytes(3 << 20))
        file._file.flush()
        os.kill(os.getpid(), 9)

    checkpoint.save(sys.argv[1], 2, write)
"""


def test_a_save_that_was_killed_on_a_tight_disk_does_not_stop_later_ones(tight_disk: pathlib.Path) -> None:
    def save_3_mib(step: int) -> None:
        checkpoint.save(tight_disk, step, lambda file: file.write(bytes(3 << 20)))

    save_3_mib(1)
    subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), tight_disk], check=False, timeout=60)
    assert list(tight_disk.glob(".*.tmp"))
    save_3_mib(2)
    assert checkpoint.steps(tight_disk) == [1, 2]
    with pytest.raises(checkpoint.CheckpointError, match=r"No space left.*MiB are free"):
        save_3_mib(3)
