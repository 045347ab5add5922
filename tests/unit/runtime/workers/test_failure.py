"""The reason and message of a failed worker process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from elasticjob_runtime.contract import MISMATCH, PEER_LOST, FailureValue, first_failure
from elasticjob_runtime.contract.collectives import DEFAULT_GROUP, Call, pack
from elasticjob_runtime.workers import error_file
from elasticjob_runtime.workers.failure import (
    TRACEBACK_BYTES,
    describe,
    happened_at,
    last_traceback,
    lost_peer,
)

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: loss is nan
"""


UNREADABLE = ("", "{", "[]", "{}", '{"message": 3}', '{"message": {}}', '{"message": null}', None)
"""Content of an error file; None: there is none."""


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
        (
            3,
            "usage: train.py [-h]\ntrain.py: error: no data\n",
            "ApplicationError",
            "exit code 3: train.py: error: no data",
        ),
        (-signal.SIGSEGV, "", "Signal", "killed by SIGSEGV"),
        (-signal.SIGKILL, "", "Signal", "killed by SIGKILL (out of memory?)"),
        (-63, "", "Signal", "killed by signal 63"),
        (-signal.SIGABRT, "terminate called\n", "Signal", "killed by SIGABRT"),
        (2, "x" * 5000, "ApplicationError", f"exit code 2: {'x' * 5000}"[:500]),
    ],
)
def test_the_reason_follows_from_stderr_and_exit_code(code: int, stderr: str, reason: str, message: str) -> None:
    assert describe(code, None, stderr)[:2] == (reason, message)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        pytest.param("all is well", "", id="none"),
        pytest.param(TRACEBACK + "another thread says goodbye\n", TRACEBACK.strip(), id="lines after it"),
        pytest.param(
            TRACEBACK.replace("is nan", "is 0") + "on\n" + TRACEBACK, TRACEBACK.strip(), id="another one before"
        ),
    ],
)
def test_the_last_traceback_of_the_output_counts(text: str, last: str) -> None:
    assert last_traceback(text) == last


RECORDED = {"message": "RuntimeError: NCCL timeout\nmore", "extraInfo": {"py_callstack": "the stack"}}


@pytest.mark.parametrize(
    ("text", "message", "traceback"),
    [
        (json.dumps({"message": RECORDED}), "RuntimeError: NCCL timeout", "the stack"),
        (json.dumps({"message": "out of luck"}), "out of luck", "out of luck"),
        *((unreadable, "ValueError: loss is nan", TRACEBACK.strip()) for unreadable in UNREADABLE),
    ],
)
def test_an_error_file_that_can_be_read_takes_precedence_over_stderr(
    tmp_path: Path, text: str | None, message: str, traceback: str
) -> None:
    file = tmp_path / "error.json"
    if text is not None:
        file.write_text(text)
    assert describe(1, file, TRACEBACK) == ("ApplicationError", message, traceback)


@pytest.mark.parametrize(
    ("exit_code", "out_of_memory", "reason"),
    [
        (-9, True, "OutOfMemory"),
        (137, True, "OutOfMemory"),
        (-9, False, "Signal"),
        (-15, True, "Signal"),
        (1, True, "ApplicationError"),
    ],
)
def test_only_a_sigkill_counts_as_out_of_memory(exit_code: int, out_of_memory: bool, reason: str) -> None:
    found, message, _ = describe(exit_code, None, "loading", out_of_memory=out_of_memory)
    assert found == reason
    assert ("raise the container's memory limit" in message) == (reason == "OutOfMemory")
    assert "(out of memory?)" not in message, "it is known"


def test_a_long_traceback_keeps_its_end(tmp_path: Path) -> None:
    long = "Traceback (most recent call last):\n" + '  File "ä.py"\n' * 2000 + "ValueError: the end"
    traceback = describe(1, record(tmp_path / "e", {"message": "m", "extraInfo": {"py_callstack": long}}), "")[2]
    assert len(traceback.encode()) <= TRACEBACK_BYTES
    assert traceback.startswith("...")
    assert traceback.endswith("ValueError: the end")


@pytest.mark.parametrize(
    ("code", "recorded_at", "traceback_at", "expected"),
    [
        (1, None, 90.0, 90.0),  # the exception, not the end of the process that took another ten seconds
        (1, None, None, 100.0),
        (-9, None, 90.0, 100.0),  # a traceback that was handled has nothing to do with the signal
        (1, 80.0, 90.0, 80.0),
    ],
)
def test_the_time_of_a_failure_is_that_of_its_error_file_or_traceback(
    tmp_path: Path, code: int, recorded_at: float | None, traceback_at: float | None, expected: float
) -> None:
    file = tmp_path / "error.json"
    if recorded_at is not None:
        file.touch()
        os.utime(file, (recorded_at, recorded_at))
    assert happened_at(code, file, traceback_at, 100.0) == expected


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] "
LOST_PEERS = (
    f"RuntimeError: {GLOO}Connection closed by peer [127.0.0.1]:4711",
    f"RuntimeError: {GLOO}Read error [127.0.0.1]:4711: Connection reset by peer",
    f"RuntimeError: {GLOO}writev [127.0.0.1]:4711: Broken pipe",
    f"RuntimeError: {GLOO}Application timeout caused pair closure",
    "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    "NCCL error: remote process exited or there was a network error, NCCL version 2.21",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
)
OTHER_ERRORS = (
    "ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "TimeoutError: Timed out waiting for the data server",
    "ValueError: loss is nan",
)


@pytest.mark.parametrize("text", [*LOST_PEERS, *OTHER_ERRORS])
def test_errors_of_a_lost_peer_are_recognized(text: str) -> None:
    assert lost_peer(text) is (text in LOST_PEERS)


def test_a_lost_peer_is_recognized_however_the_process_ended(tmp_path: Path) -> None:
    message = f"RuntimeError: {GLOO}Connection closed by peer [127.0.0.1]:4711"
    assert describe(1, None, TRACEBACK.replace("ValueError: loss is nan", message))[:2] == (PEER_LOST, message)
    assert (
        describe(1, record(tmp_path / "e", {"message": message, "extraInfo": {"py_callstack": "stack"}}), "")[0]
        == PEER_LOST
    )
    watchdog = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\nterminate called\n"
    assert describe(-signal.SIGABRT, None, watchdog)[0] == PEER_LOST
    assert describe(-signal.SIGKILL, None, watchdog)[0] == "Signal"
    chained = f"{TRACEBACK.replace('loss is nan', LOST_PEERS[0])}\nDuring handling ...\n{TRACEBACK}"
    assert describe(1, None, chained)[0] == "ApplicationError", "the last traceback decides"


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ([(0, "ApplicationError", 2.0), (1, "Signal", 1.0)], 1),
        ([(0, PEER_LOST, 1.0), (1, "ApplicationError", 2.0)], 1),
        ([(0, PEER_LOST, 2.0), (1, PEER_LOST, 1.0)], 1),
    ],
)
def test_the_first_failure_is_the_earliest_that_is_no_consequence(
    failures: list[tuple[int, str, float]], first: int
) -> None:
    made = [
        FailureValue(member="m", round=1, rank=rank, local_rank=0, exit_code=1, reason=reason, message="", time=at)
        for rank, reason, at in failures
    ]
    assert first_failure(made).rank == first


def calls(*sizes: int) -> dict[str, list[Call]]:
    return {DEFAULT_GROUP: [Call(number, f"all_reduce [[{size}]]", over=True) for number, size in enumerate(sizes, 1)]}


ABORTED = -signal.SIGABRT
BLAMED: dict[str, tuple[list[tuple[int, str, int, dict[str, list[Call]]]], int, str]] = {
    "a rank that skipped a collective: the first that ends is a victim, and leaves no recorder": (
        [
            (0, "Signal", ABORTED, {}),
            (2, PEER_LOST, 1, calls(4, 3)),
            (3, PEER_LOST, 1, calls(4, 3)),
            (1, PEER_LOST, 1, calls(4, 5)),
        ],
        1,
        MISMATCH,
    ),
    "only lost peers": (
        [(2, PEER_LOST, 1, calls(4, 3)), (3, PEER_LOST, 1, calls(4, 3)), (1, PEER_LOST, 1, calls(4, 5))],
        1,
        MISMATCH,
    ),
    "two ranks: the first of them, and the message names both": (
        [(0, MISMATCH, 1, calls(4)), (1, PEER_LOST, 1, calls(5))],
        0,
        MISMATCH,
    ),
    "a cause of its own comes before recorders": (
        [(0, PEER_LOST, 1, calls(4, 3)), (1, "ApplicationError", 1, calls(4)), (2, PEER_LOST, 1, calls(4, 7))],
        1,
        "ApplicationError",
    ),
    "no difference": ([(0, PEER_LOST, 1, calls(4)), (1, "Signal", ABORTED, calls(4))], 1, "Signal"),
}


@pytest.mark.parametrize(("failures", "rank", "reason"), BLAMED.values(), ids=BLAMED)
def test_recorders_name_the_rank_that_differs_before_the_order_of_exits_does(
    failures: list[tuple[int, str, int, dict[str, list[Call]]]], rank: int, reason: str
) -> None:
    made = [
        FailureValue(
            member=f"m{rank}", round=1, rank=rank, local_rank=0, exit_code=code, reason=reason, message="as it says",
            time=float(at), collectives=pack(collectives),
        )
        for at, (rank, reason, code, collectives) in enumerate(failures)
    ]  # fmt: skip
    found = first_failure(made)
    assert (found.rank, found.reason) == (rank, reason)
    assert (found.message != "as it says") == (reason == MISMATCH)


def test_a_mismatch_of_collectives_is_recognized() -> None:
    gloo = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  op.preamble.length"
    assert describe(ABORTED, None, gloo)[0] == MISMATCH
    assert describe(-signal.SIGKILL, None, gloo)[0] == "Signal"


def test_our_error_file_is_read_like_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_file, "_path", tmp_path / "error.json")
    monkeypatch.setattr(error_file, "_worker", os.getpid())
    try:
        raise ValueError("loss is nan")
    except ValueError as error:
        error_file.write(error)
        error_file.write(KeyError("a later one"))
    reason, message, traceback = describe(1, tmp_path / "error.json", "")
    assert (reason, message) == ("ApplicationError", "ValueError: loss is nan")
    assert traceback.startswith("Traceback (most recent call last):")
    assert traceback.rstrip().endswith("ValueError: loss is nan")
    monkeypatch.setattr(error_file, "_path", tmp_path / "of a child")
    monkeypatch.setattr(error_file, "_worker", os.getpid() + 1)
    error_file.write(ValueError("in a child"))
    assert not (tmp_path / "of a child").exists(), "its exceptions are the worker's to handle"
