"""Checkpoints: a resume never sees half of one, and never loses the one before."""

from __future__ import annotations

import concurrent.futures
import errno
import logging
import os
import pathlib
import pickle
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

import pytest
from elasticjob_runtime.training import checkpoint
from hypothesis import given
from hypothesis import strategies as st

STATE = {"weights": list(range(50)), "step": 0}


def save(directory: pathlib.Path, step: int, keep: int = checkpoint.DEFAULT_KEEP) -> pathlib.Path:
    return checkpoint.save(directory, step, lambda file: pickle.dump({**STATE, "step": step}, file), keep=keep)


def load_step(directory: pathlib.Path) -> int | None:
    """Step of the checkpoint that a resume starts from; checks that name, file and content agree."""
    found = checkpoint.load(directory, pickle.load)
    if found is None:
        return None
    assert found.state == {**STATE, "step": found.step}
    return found.step


def files_in(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_is_saved_is_loaded(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "made" / "on the way", 120)
    assert path.name == "step-000000000120.ckpt"
    assert load_step(path.parent) == 120


def test_nothing_there_is_a_start_from_the_beginning(tmp_path: pathlib.Path) -> None:
    assert load_step(tmp_path) is None
    assert load_step(tmp_path / "missing") is None


def test_the_newest_by_step_wins_not_by_time(tmp_path: pathlib.Path) -> None:
    save(tmp_path, 1000)
    save(tmp_path, 999)
    assert load_step(tmp_path) == 1000


def test_the_last_three_are_kept(tmp_path: pathlib.Path) -> None:
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


def test_files_of_others_are_left_alone(tmp_path: pathlib.Path) -> None:
    for name in ("notes.txt", "step-5.ckpt", "model.pt", ".hidden.tmp", "step-000000000007.ckpt.bak"):
        (tmp_path / name).write_text("mine")
    for step in range(5):
        save(tmp_path, step, keep=1)
    assert files_in(tmp_path) == sorted(
        [".hidden.tmp", "model.pt", "notes.txt", "step-000000000004.ckpt", "step-000000000007.ckpt.bak", "step-5.ckpt"]
    )
    assert load_step(tmp_path) == 4


class TestTornAndCorruptFiles:
    """Each ends the complaint: the job crashes at every restart because its newest checkpoint is half a file."""

    def test_a_file_cut_anywhere_is_skipped(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 1)
        path = save(tmp_path, 2)
        content = path.read_bytes()
        footer = len(content) - 56
        for length in {
            0,
            1,
            55,
            56,
            57,
            footer // 2,
            footer - 1,
            footer,
            footer + 1,
            footer + 8,
            len(content) - 8,
            len(content) - 1,
        }:
            path.write_bytes(content[:length])
            assert load_step(tmp_path) == 1, f"cut after {length} bytes"
        path.write_bytes(content)
        assert load_step(tmp_path) == 2

    @given(data=st.data())
    def test_a_flipped_bit_anywhere_is_noticed(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        directory = tmp_path_factory.mktemp("flip")
        save(directory, 1)
        path = save(directory, 2)
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        assert load_step(directory) == 1

    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (lambda _: b"", "it is empty"),
            (lambda content: content[:20], "it ends after 20 bytes, in the middle of a write"),
            (lambda content: content[:-1], "without the footer of a finished write"),
            (lambda content: content[:30] + content[40:], "bytes where its footer says"),
            (lambda content: content + content, "bytes where its footer says"),
            (lambda content: bytes(len(content) - 56) + content[-56:], "its checksum does not match its content"),
        ],
    )
    def test_the_log_says_which_file_and_why(
        self, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes], reason: str
    ) -> None:
        save(tmp_path, 1)
        path = save(tmp_path, 2)
        path.write_bytes(damage(path.read_bytes()))
        assert load_step(tmp_path) == 1
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert str(path) in record.getMessage()
        assert reason in record.getMessage()

    def test_a_renamed_file_is_not_taken_for_another_step(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 1).rename(tmp_path / "step-000000000009.ckpt")
        assert load_step(tmp_path) is None

    def test_all_corrupt_is_said_loudly(self, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
        for path in (save(tmp_path, 1), save(tmp_path, 2)):
            path.write_bytes(b"")
        assert load_step(tmp_path) is None
        assert caplog.records[-1].levelno == logging.ERROR
        assert "all 2 are corrupt" in caplog.text

    def test_a_corrupt_file_does_not_take_the_place_of_a_good_one(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 1)
        save(tmp_path, 2).write_bytes(b"")
        save(tmp_path, 3, keep=2)
        assert checkpoint.steps(tmp_path) == [1, 3]

    def test_a_corrupt_newer_file_never_costs_the_one_just_written(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 500).write_bytes(b"torn")
        save(tmp_path, 100, keep=1)
        save(tmp_path, 110, keep=1)
        assert load_step(tmp_path) == 110

    def test_a_state_that_does_not_fit_is_an_error_and_no_silent_step_back(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 1)
        checkpoint.save(tmp_path, 2, lambda file: file.write(b"whole, but no pickle"))
        with pytest.raises(pickle.UnpicklingError):
            checkpoint.load(tmp_path, pickle.load)


class TestFailedWrites:
    def test_an_exception_in_the_serializer_leaves_everything_as_it_was(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 1)

        def fails(file: BinaryIO) -> None:
            file.write(b"half")
            raise KeyError("weights")

        with pytest.raises(KeyError):
            checkpoint.save(tmp_path, 2, fails)
        assert files_in(tmp_path) == ["step-000000000001.ckpt"]

    def test_a_path_that_is_a_file_is_named(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "model.pt").write_text("")
        with pytest.raises(checkpoint.CheckpointError, match=r"model\.pt"):
            save(tmp_path / "model.pt", 1)
        with pytest.raises(checkpoint.CheckpointError, match=r"model\.pt: Not a directory"):
            load_step(tmp_path / "model.pt")

    def test_wrong_numbers_are_refused(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(ValueError, match="step=-1"):
            save(tmp_path, -1)
        with pytest.raises(ValueError, match="keep=0"):
            save(tmp_path, 1, keep=0)
        assert files_in(tmp_path) == []

    def test_content_is_on_the_disk_before_its_name(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []
        fsync, rename = os.fsync, pathlib.Path.rename

        def recording_fsync(descriptor: int) -> None:
            events.append("fsync " + os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(tmp_path)))
            fsync(descriptor)

        def recording_rename(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
            events.append(f"rename to {target.name}")
            return rename(source, target)

        monkeypatch.setattr(os, "fsync", recording_fsync)
        monkeypatch.setattr(pathlib.Path, "rename", recording_rename)
        save(tmp_path, 1)
        written, renamed, directory = events
        assert written.startswith("fsync /.step-000000000001.ckpt.")
        assert renamed == "rename to step-000000000001.ckpt"
        assert directory == "fsync "


class TestStorage:
    """Errors of a disk or a file server, which cannot be made at will without root: `open` gives them."""

    @pytest.fixture
    def fail_to_open(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
        failures: dict[str, int] = {}

        def opens(path: pathlib.Path, mode: str) -> BinaryIO:
            code = failures.get(pathlib.Path(path).name)
            if code:
                raise OSError(code, os.strerror(code))
            return open(path, mode)  # type: ignore[return-value]

        monkeypatch.setattr("elasticjob_runtime.training.checkpoint.directory.open", opens, raising=False)
        return failures

    def test_a_bad_block_costs_one_checkpoint(self, tmp_path: pathlib.Path, fail_to_open: dict[str, int]) -> None:
        save(tmp_path, 1)
        fail_to_open[save(tmp_path, 2).name] = errno.EIO
        assert load_step(tmp_path) == 1
        save(tmp_path, 3)
        assert checkpoint.steps(tmp_path) == [1, 2, 3], "what cannot be read now may be readable later"

    def test_a_failing_file_server_is_no_reason_to_start_anew(
        self, tmp_path: pathlib.Path, fail_to_open: dict[str, int]
    ) -> None:
        for step in (1, 2):
            fail_to_open[save(tmp_path, step).name] = errno.EIO
        with pytest.raises(checkpoint.CheckpointError, match="Input/output error"):
            load_step(tmp_path)

    def test_missing_permission_is_an_error_and_no_silent_step_back(
        self, tmp_path: pathlib.Path, fail_to_open: dict[str, int]
    ) -> None:
        save(tmp_path, 1)
        fail_to_open[save(tmp_path, 2).name] = errno.EACCES
        with pytest.raises(checkpoint.CheckpointError, match="Permission denied"):
            load_step(tmp_path)


class TestTwoWriters:
    """Each ends the complaint: a rank 0 that was cut off still wrote, and the shared checkpoint was a mix of two."""

    def test_a_writer_does_not_disturb_another_in_the_middle_of_a_write(self, tmp_path: pathlib.Path) -> None:
        half, go_on = threading.Event(), threading.Event()

        def slow(file: BinaryIO) -> None:
            content = pickle.dumps({**STATE, "step": 8})
            file.write(content[:10])
            half.set()
            assert go_on.wait(30)
            file.write(content[10:])

        with concurrent.futures.ThreadPoolExecutor() as pool:
            writer = pool.submit(checkpoint.save, tmp_path, 8, slow)
            try:
                assert half.wait(30)
                save(tmp_path, 7)
                save(tmp_path, 8)
                assert load_step(tmp_path) == 8
            finally:
                go_on.set()
            writer.result()
        assert files_in(tmp_path) == ["step-000000000007.ckpt", "step-000000000008.ckpt"]
        assert load_step(tmp_path) == 8

    def test_many_writers_of_the_same_steps(self, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
        """Each cleans up after dead writers while the others have just opened their files."""

        def write() -> None:
            for step in range(60):
                save(tmp_path, step)

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for writer in [pool.submit(write) for _ in range(6)]:
                writer.result()
        assert files_in(tmp_path) == [f"step-0000000000{step}.ckpt" for step in (57, 58, 59)]
        assert load_step(tmp_path) == 59
        assert caplog.records == []

    def test_a_reader_finds_one_while_a_writer_prunes(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 0, keep=1)
        seen = []
        with concurrent.futures.ThreadPoolExecutor() as pool:
            writer = pool.submit(lambda: [save(tmp_path, step, keep=1) for step in range(1, 200)])
            while not writer.done():
                seen.append(load_step(tmp_path))
            writer.result()
        assert None not in seen
        assert seen == sorted(seen)  # type: ignore[type-var]


class TestAbandonedFiles:
    def temporary(self, directory: pathlib.Path, kernel: str, age: float = 0.0) -> pathlib.Path:
        path = directory / f".step-000000000003.ckpt.{kernel}.4711.0a1b2c3d.tmp"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
        return path

    def test_a_temporary_file_is_never_loaded(self, tmp_path: pathlib.Path) -> None:
        self.temporary(tmp_path, "0123456789ab")
        assert load_step(tmp_path) is None

    def test_of_a_dead_writer_of_this_machine_is_removed_at_once(self, tmp_path: pathlib.Path) -> None:
        boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
        path = self.temporary(tmp_path, boot_id)
        save(tmp_path, 4)
        assert not path.exists()

    def test_of_another_machine_is_removed_when_it_is_old(self, tmp_path: pathlib.Path) -> None:
        path = self.temporary(tmp_path, "0123456789ab", age=600)
        save(tmp_path, 4)
        assert path.exists(), "its writer may be alive"
        os.utime(path, (time.time() - 7200,) * 2)
        save(tmp_path, 5)
        assert not path.exists()

    def test_without_locks_age_decides(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_locks(*_: object) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr("fcntl.flock", no_locks)
        boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
        young = self.temporary(tmp_path, boot_id)
        save(tmp_path, 4)
        assert young.exists()
        assert load_step(tmp_path) == 4
