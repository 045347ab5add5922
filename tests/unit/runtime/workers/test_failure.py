"""What a failed worker is said to have failed of."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from elasticjob_runtime.workers.failure import TRACEBACK_BYTES, describe, exit_code_of, happened_at, last_traceback

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: loss is nan
"""


def record(path: Path, message: object) -> Path:
    """As torch's @record writes it."""
    path.write_text(json.dumps({"message": message}))
    return path


@pytest.mark.parametrize(
    ("code", "stderr", "reason", "message"),
    [
        (1, TRACEBACK, "ApplicationError", "ValueError: loss is nan"),
        (1, "starting\n" + TRACEBACK, "ApplicationError", "ValueError: loss is nan"),
        (1, "", "ApplicationError", "exit code 1"),
        (3, "usage: train.py [-h]\ntrain.py: error: no data\n", "ApplicationError", "exit code 3: train.py: error: no data"),
        (-signal.SIGSEGV, "", "Signal", "killed by SIGSEGV"),
        (-signal.SIGKILL, "", "Signal", "killed by SIGKILL (out of memory? the kernel kills with it)"),
        (-63, "", "Signal", "killed by signal 63"),
        (-signal.SIGABRT, "terminate called\n", "Signal", "killed by SIGABRT"),
    ],
)
def test_what_stderr_and_exit_code_say(code: int, stderr: str, reason: str, message: str) -> None:
    assert describe(code, None, stderr)[:2] == (reason, message)


def test_the_last_traceback_is_the_one_that_counts() -> None:
    handled = TRACEBACK.replace("loss is nan", "handled")
    assert describe(1, None, handled + "went on\n" + TRACEBACK)[2] == TRACEBACK.strip()


def test_lines_of_others_after_a_traceback_are_not_its() -> None:
    assert last_traceback(TRACEBACK + "another thread says goodbye\n") == TRACEBACK.strip()


def test_no_traceback() -> None:
    assert last_traceback("all is well") == ""


def test_what_record_wrote_is_trusted_more_than_stderr(tmp_path: Path) -> None:
    file = record(tmp_path / "error.json", {"message": "RuntimeError: NCCL timeout\nmore", "extraInfo": {"py_callstack": "the stack"}})
    assert describe(1, file, TRACEBACK) == ("ApplicationError", "RuntimeError: NCCL timeout", "the stack")


def test_record_may_write_a_plain_message(tmp_path: Path) -> None:
    assert describe(1, record(tmp_path / "error.json", "out of luck"), "") == ("ApplicationError", "out of luck", "out of luck")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"message": 3}', '{"message": {}}', '{"message": null}'])
def test_an_error_file_that_cannot_be_read_is_not_there(tmp_path: Path, text: str) -> None:
    file = tmp_path / "error.json"
    file.write_text(text)
    assert describe(1, file, TRACEBACK)[1] == "ValueError: loss is nan"


def test_an_error_file_that_is_missing(tmp_path: Path) -> None:
    assert describe(1, tmp_path / "error.json", TRACEBACK)[1] == "ValueError: loss is nan"


def test_a_long_traceback_keeps_its_end(tmp_path: Path) -> None:
    long = "Traceback (most recent call last):\n" + '  File "ä.py"\n' * 2000 + "ValueError: the end"
    traceback = describe(1, record(tmp_path / "e", {"message": "m", "extraInfo": {"py_callstack": long}}), "")[2]
    assert len(traceback.encode()) <= TRACEBACK_BYTES
    assert traceback.startswith("...")
    assert traceback.endswith("ValueError: the end")


def test_a_long_message_is_one_short_line() -> None:
    assert len(describe(1, None, "x" * 5000)[1]) <= 500


@pytest.mark.parametrize(
    ("code", "traceback_at", "expected"),
    [
        (1, 90.0, 90.0),  # the exception, not the end of the process that took another ten seconds
        (1, None, 100.0),
        (-9, 90.0, 100.0),  # a traceback that was handled has nothing to do with the signal
    ],
)
def test_when_it_happened(code: int, traceback_at: float | None, expected: float) -> None:
    assert happened_at(code, None, traceback_at, 100.0) == expected


def test_when_it_happened_by_the_error_file(tmp_path: Path) -> None:
    file = record(tmp_path / "error.json", "x")
    os.utime(file, (80.0, 80.0))
    assert happened_at(1, file, 90.0, 100.0) == 80.0
    assert happened_at(1, tmp_path / "missing", 90.0, 100.0) == 90.0


def test_exit_codes_of_wait_statuses() -> None:
    assert exit_code_of(3 << 8) == 3
    assert exit_code_of(signal.SIGKILL) == -9
