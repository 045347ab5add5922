"""The termination message of a pod."""

from __future__ import annotations

from pathlib import Path

from elasticjob_runtime.agent import termination
from elasticjob_runtime.contract import Env, OutcomeState, OutcomeValue


def test_the_message_of_a_failed_job_is_its_first_failure() -> None:
    failure = {"traceback": "Traceback ...\nRuntimeError: boom"}
    outcome = OutcomeValue(
        state=OutcomeState.FAILED, reason="NoProgress", message="rank 0 failed: boom", failure=failure
    )
    assert termination.message("the job failed", outcome) == "rank 0 failed: boom\nTraceback ...\nRuntimeError: boom"


def test_the_message_of_any_other_end_is_its_reason() -> None:
    assert termination.message("cut off", None) == "cut off"
    assert termination.message("cut off", OutcomeValue(state=OutcomeState.SUCCEEDED, reason="")) == "cut off"


def test_file_and_folder_are_created(tmp_path: Path) -> None:
    path = tmp_path / "some" / "folder" / "log"
    termination.write("first", {Env.TERMINATION_LOG: str(path)})
    termination.write("second", {Env.TERMINATION_LOG: str(path)})
    assert path.read_text() == "second"


def test_a_long_traceback_keeps_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    termination.write("\u00e4" * 5000 + "the end", {Env.TERMINATION_LOG: str(path)})
    assert path.read_bytes().endswith(b"the end")
    assert path.stat().st_size <= 4096


def test_a_file_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    termination.write("text", {Env.TERMINATION_LOG: str(tmp_path / "file" / "log")})
    termination.write("text", {Env.TERMINATION_LOG: "/dev/full"})
