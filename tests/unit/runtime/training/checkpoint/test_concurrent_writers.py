"""Checkpoint writers that run concurrently, fail, or leave temporary files behind."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import pathlib
import pickle
import threading
import time
from typing import BinaryIO

import pytest
from elasticjob_runtime.training import checkpoint

from tests.unit.runtime.training.checkpoint.steps import STATE, files_in, load_step, save


class TestFailedWrites:
    def test_an_exception_in_the_serializer_leaves_no_file(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 1)

        def fails(file: BinaryIO) -> None:
            file.write(b"half")
            raise KeyError("weights")

        with pytest.raises(KeyError):
            checkpoint.save(tmp_path, 2, fails)
        assert files_in(tmp_path) == ["step-000000000001.ckpt"]

    def test_a_path_that_is_a_file_is_named_in_the_error(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "model.pt").write_text("")
        with pytest.raises(checkpoint.CheckpointError, match=r"model\.pt"):
            save(tmp_path / "model.pt", 1)
        with pytest.raises(checkpoint.CheckpointError, match=r"model\.pt: Not a directory"):
            load_step(tmp_path / "model.pt")

    def test_an_invalid_step_or_keep_is_rejected(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(ValueError, match="step=-1"):
            save(tmp_path, -1)
        with pytest.raises(ValueError, match="keep=0"):
            save(tmp_path, 1, keep=0)
        assert files_in(tmp_path) == []

    def test_content_is_synced_before_the_file_gets_its_name(
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


class TestTwoWriters:
    """A rank 0 that was cut off and still writes must not mix its checkpoints with those of another."""

    def test_a_save_does_not_disturb_another_in_progress(self, tmp_path: pathlib.Path) -> None:
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

    def test_many_writers_can_save_the_same_steps(
        self, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
    ) -> None:
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

    def test_a_reader_always_finds_a_checkpoint_while_a_writer_prunes(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 0, keep=1)
        seen = []
        with concurrent.futures.ThreadPoolExecutor() as pool:
            writer = pool.submit(lambda: [save(tmp_path, step, keep=1) for step in range(1, 200)])
            while not writer.done():
                seen.append(load_step(tmp_path))
            writer.result()
        assert None not in seen
        assert seen == sorted(seen)  # type: ignore[type-var]


OWN_KERNEL = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
ANOTHER = "0123456789ab"


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize(
    ("kernel", "age", "locks", "removed"),
    [
        (OWN_KERNEL, 0, True, True),
        (OWN_KERNEL, 0, False, False),
        (ANOTHER, 600, True, False),
        (ANOTHER, 7200, True, True),
    ],
    ids=["of a dead local writer", "without file locks", "of another machine", "of another machine, old"],
)
def test_a_temporary_file_is_never_loaded_and_removed_once_its_writer_cannot_be_alive(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kernel: str, age: int, locks: bool, removed: bool
) -> None:
    if not locks:
        monkeypatch.setattr("fcntl.flock", no_locks)
    path = tmp_path / f".step-000000000003.ckpt.{kernel}.4711.0a1b2c3d.tmp"
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age,) * 2)
    assert load_step(tmp_path) is None
    save(tmp_path, 4)
    assert path.exists() != removed
    assert load_step(tmp_path) == 4
