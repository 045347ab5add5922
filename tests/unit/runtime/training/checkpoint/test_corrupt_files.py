"""Incomplete and corrupt checkpoints: a resume never loads half a file, nor falls back silently."""

from __future__ import annotations

import logging
import pathlib
import pickle
from collections.abc import Callable

import pytest
from elasticjob_runtime.training import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.runtime.training.checkpoint.steps import load_step, save


class TestIncompleteAndCorruptFiles:
    """A job must never crash at every restart because its newest checkpoint is half a file."""

    def test_a_file_cut_at_any_byte_is_skipped(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 1)
        path = save(tmp_path, 2)
        content = path.read_bytes()
        for length in range(len(content)):
            path.write_bytes(content[:length])
            assert load_step(tmp_path) == 1, f"cut after {length} bytes"
        path.write_bytes(content)
        assert load_step(tmp_path) == 2

    @given(data=st.data())
    def test_any_flipped_bit_is_detected(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
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
        ids=["empty", "cut early", "cut by one byte", "bytes missing", "written twice", "content overwritten"],
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

    def test_an_error_is_logged_if_all_checkpoints_are_corrupt(
        self, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for path in (save(tmp_path, 1), save(tmp_path, 2)):
            path.write_bytes(b"")
        assert load_step(tmp_path) is None
        assert caplog.records[-1].levelno == logging.ERROR
        assert "all 2 are corrupt" in caplog.text

    @pytest.mark.parametrize(
        "damage", [lambda _: b"", lambda content: bytes(20) + content[20:]], ids=["empty", "content overwritten"]
    )
    def test_a_corrupt_file_does_not_count_as_a_kept_checkpoint(
        self, tmp_path: pathlib.Path, damage: Callable[[bytes], bytes]
    ) -> None:
        save(tmp_path, 1)
        for step in (2, 3):
            path = save(tmp_path, step)
            path.write_bytes(damage(path.read_bytes()))
        save(tmp_path, 4, keep=2)
        assert checkpoint.steps(tmp_path) == [1, 4]

    def test_a_corrupt_later_file_does_not_cause_the_new_one_to_be_deleted(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 500).write_bytes(b"incomplete")
        save(tmp_path, 100, keep=1)
        save(tmp_path, 110, keep=1)
        assert load_step(tmp_path) == 110

    def test_a_state_that_cannot_be_read_is_an_error_not_a_fallback(self, tmp_path: pathlib.Path) -> None:
        save(tmp_path, 1)
        checkpoint.save(tmp_path, 2, lambda file: file.write(b"whole, but no pickle"))
        with pytest.raises(pickle.UnpicklingError):
            checkpoint.load(tmp_path, pickle.load)
