"""Crash loops: how long the next restart is delayed, and when the job ends instead."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_runtime.contract import PEER_LOST, FailureValue, SpecValue
from elasticjob_runtime.membership.actions import Action, ProposePlan, PublishOutcome
from elasticjob_runtime.membership.crash_loop import (
    Crash,
    CrashAssessment,
    CrashHistory,
    CrashLimits,
    assess,
    crash_kind,
    delay,
    longest_delay,
    script_line,
)
from elasticjob_runtime.membership.planner import next_plan
from elasticjob_runtime.membership.view import Plan

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    case,
    describe,
    make_failure,
    make_plan,
    make_view,
    members,
)

TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3.11/runpy.py", line 88, in _run_code
  File "/app/train.py", line 3, in <module>
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
"""
LIMITS = CrashLimits(at_once=1, backoff=1.0, backoff_max=10.0, stable_time=20.0, max_stalled=None)


def crash(kind: str = "A", step: int | None = None, ran: float = 1.0) -> Crash:
    return Crash(kind=kind, step=step, ran_seconds=ran)


def after(*crashes: Crash, limits: CrashLimits = LIMITS) -> CrashAssessment:
    """The assessment of the last of these crashes."""
    assessment = CrashAssessment(history=CrashHistory())
    for one in crashes:
        assessment = assess(assessment.history, one, limits)
    return assessment


DELAYS = {
    "the first crash is restarted at once": ([crash()], 0.0),
    "the same crash again": ([crash()] * 2, 1.0),
    "a third time": ([crash()] * 3, 2.0),
    "a fourth time": ([crash()] * 4, 4.0),
    "never longer than the maximum": ([crash()] * 30, 10.0),
    "another crash is restarted at once": ([crash(), crash(), crash("B")], 0.0),
    "two alternating crashes are never the same twice": ([crash(), crash("B"), crash(), crash("B")], 0.0),
    "a lost peer is a consequence, not another crash": ([crash(), crash(PEER_LOST), crash()], 2.0),
    "a lost peer does not make two crashes the same": ([crash(), crash(PEER_LOST), crash("B")], 0.0),
    "only lost peers are known": ([crash(PEER_LOST), crash(PEER_LOST), crash()], 2.0),
    "a step further is restarted at once": ([crash(step=5), crash(step=6)], 0.0),
    "the count starts over after progress": ([crash(step=5)] * 4 + [crash(step=6)] * 2, 1.0),
    "steps repeated from an old checkpoint are no progress": ([crash(step=100), crash(step=90), crash(step=99)], 2.0),
    "no step since the restart": ([crash(step=100), crash()], 1.0),
    "a first step after a crash without one is progress": ([crash(), crash(step=1)], 0.0),
    "a script that reports nothing and ran for a while is restarted at once": ([crash(), crash(ran=20.0)], 0.0),
    "a script that reports nothing and did not run for long is delayed": ([crash(), crash(ran=19.9)], 1.0),
    "run time is no progress where steps are reported": ([crash(step=100), crash(ran=500.0)], 1.0),
}


def test_the_first_crashes_of_a_kind_are_restarted_at_once() -> None:
    assert [delay(times, CrashLimits(backoff=1.0)) for times in range(1, 8)] == [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(("crashes", "seconds"), DELAYS.values(), ids=DELAYS)
def test_repeated_crashes_are_restarted_with_growing_delays(crashes: list[Crash], seconds: float) -> None:
    assert after(*crashes).delay == seconds


ENDS = {
    "four restarts without progress are allowed": ([crash(step=7)] * 5, None, ""),
    "five restarts without progress end the job":
        ([crash(step=7)] * 6, None, "5 restarts without progress (no step beyond 7)"),
    "five different crashes without progress end the job":
        ([crash(kind, 7) for kind in "ABCDEF"], None, "5 restarts without progress (no step beyond 7)"),
    "progress in between resets the count": ([*[crash(step=7)] * 5, crash(step=8), *[crash(step=8)] * 4], None, ""),
    "a script that reports nothing is not ended by default": ([crash()] * 50, None, ""),
    "a script that reports nothing is ended at an explicit limit":
        ([crash()] * 4, 3, "3 restarts without progress (no workers ran for 20 s)"),
    "a lower limit": ([crash(step=7)] * 2, 1, "1 restarts without progress (no step beyond 7)"),
    "no limit": ([crash(step=7)] * 50, 0, ""),
}  # fmt: skip


@pytest.mark.parametrize(("crashes", "most", "end"), ENDS.values(), ids=ENDS)
def test_restarts_without_progress_end_the_job(crashes: list[Crash], most: int | None, end: str) -> None:
    assert after(*crashes, limits=dataclasses.replace(LIMITS, max_stalled=most)).end == end


def test_without_a_backoff_restarts_are_immediate() -> None:
    assert [delay(times, CrashLimits()) for times in range(9)] == [0.0] * 9
    assert after(*[crash()] * 9, limits=CrashLimits()).delay == 0.0


def test_other_members_wait_for_a_plan_as_long_as_the_planner_may_delay_it() -> None:
    assert longest_delay(CrashHistory(), LIMITS) == 0.0
    assert longest_delay(after(crash(), crash()).history, LIMITS) == after(*[crash()] * 3).delay


def failure(message: str, code: int = 1, reason: str = "ApplicationError") -> FailureValue:
    return FailureValue(member="a", round=1, rank=0, local_rank=0, exit_code=code, reason=reason, message=message)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (failure("RuntimeError: at 0x7f01"), failure("RuntimeError: at 0x8e02"), True),
        (failure("RuntimeError: no"), failure("ValueError: no"), False),
        (
            dataclasses.replace(failure("ValueError: no"), traceback=TRACE),
            dataclasses.replace(failure("ValueError: no"), traceback=TRACE.replace("line 3", "line 4")),
            False,
        ),
        (failure("killed by SIGKILL", -9, "Signal"), failure("killed by SIGSEGV", -11, "Signal"), False),
        (failure("Connection reset", 1, PEER_LOST), failure("killed by SIGABRT", -6, PEER_LOST), True),
        (failure("exit code 3", 3), failure("exit code 4", 4), False),
    ],
)
def test_crashes_of_the_same_kind_are_recognized(one: FailureValue, other: FailureValue, same: bool) -> None:
    assert (crash_kind(one) == crash_kind(other)) is same


OWN = CrashLimits(at_once=3, backoff=1.0, fail_before_first_step=True)
SCRIPT = Crash(kind="A", line="/app/train.py:3", ran_seconds=4.0)

BEFORE_FIRST_STEP = {
    "the same exception twice": ([SCRIPT, SCRIPT], True),
    "once": ([SCRIPT], False),
    "on another line": ([SCRIPT, dataclasses.replace(SCRIPT, kind="B", line="/app/train.py:4")], False),
    "killed twice, as for lack of memory": ([crash(), crash()], False),
    "with a lost peer in between": ([SCRIPT, crash(PEER_LOST), SCRIPT], True),
    "a lost peer, and once": ([crash(PEER_LOST), SCRIPT], False),
    "a step was reported before": ([crash("B", step=0), SCRIPT, SCRIPT], False),
    "a step was reported since": ([SCRIPT, dataclasses.replace(SCRIPT, step=1)], False),
    "ran for a minute": ([dataclasses.replace(SCRIPT, ran_seconds=60.0), SCRIPT, SCRIPT], False),
}


@pytest.mark.parametrize(("crashes", "ends"), BEFORE_FIRST_STEP.values(), ids=BEFORE_FIRST_STEP)
def test_a_script_that_fails_twice_before_its_first_step_ends_the_job(crashes: list[Crash], ends: bool) -> None:
    found = after(*crashes, limits=OWN)
    assert bool(found.end) == ends
    if ends:
        assert (found.end_reason, found.end) == (
            "ScriptFails",
            "the script failed twice at /app/train.py:3 before its first step",
        )
    assert not after(*crashes, limits=dataclasses.replace(OWN, fail_before_first_step=False)).end


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("ModuleNotFoundError: No module named 'x'", "/app/train.py:3"),
        ("torch.OutOfMemoryError: CUDA out of memory", "/app/train.py:3"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", "/app/train.py:3"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", ""),
        ("torch.distributed.DistNetworkError: The client socket has timed out", ""),
        ("requests.exceptions.ReadTimeout: x", ""),
        ("OSError: [Errno 98] Address already in use", ""),
        ("RuntimeError: Gloo connectFullMesh failed with x", ""),
        ("FencedError: a newer group trains", ""),
        ("RuntimeError: Connection reset by peer", ""),
        ("RuntimeError: [/pytorch/third_party/x.cc:1] write: Broken pipe", ""),
        ("errors.LocalEntryNotFoundError: An error happened while trying to locate the file", ""),
        ("requests.exceptions.ChunkedEncodingError: Response ended prematurely", ""),
        ("http.client.RemoteDisconnected: Remote end closed the line", ""),
        ("http.client.IncompleteRead: IncompleteRead(5 bytes read, 7 more expected)", ""),
        ("urllib3.exceptions.ProtocolError: x", ""),
        ("botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation", ""),
        ("botocore.exceptions.ClientError: An error occurred (503) when calling the HeadObject operation", ""),
        ("botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling x", "/app/train.py:3"),
        ("botocore.exceptions.ClientError: An error occurred (NoSuchKey) when calling x", "/app/train.py:3"),
        ("a.CheckpointError: Cannot write the checkpoint /c/step-1.ckpt: No space left on device. Earlier", ""),
        ("a.CheckpointError: Rank 1: Cannot write /c/step-1.shards: Stale file handle.", ""),
        ("a.UnreadableError: Cannot read the checkpoint /c/step-1.ckpt: Input/output error. It may be intact", ""),
        ("a.CheckpointError: Cannot write to the checkpoint directory /c: Permission denied.", "/app/train.py:3"),
        ("a.CheckpointError: The checkpoint of step 1 in /c does not fit the session: x", "/app/train.py:3"),
        ("a.SessionError: no plan from the agent within 60 s", ""),
        ("a.SessionError: the processes of 3 plans in a row could not reach each other: x", ""),
        ("a.SessionError: the models of rank 1 have other parameters or buffers than those of 0", "/app/train.py:3"),
        ("KeyError: 'storage'", "/app/train.py:3"),
    ],
)
def test_exceptions_of_the_network_storage_and_peers_are_none_of_the_script(message: str, line: str) -> None:
    assert script_line(dataclasses.replace(failure(message), traceback=TRACE)) == line


def test_a_failure_without_a_traceback_is_no_exception_of_the_script() -> None:
    assert script_line(failure("exit code 3", 3)) == ""


def test_a_syntax_error_is_an_exception_of_the_script() -> None:
    trace = 'Traceback (most recent call last):\n  File "/app/train.py", line 3\n    foo(\n       ^\n'
    assert script_line(dataclasses.replace(failure("SyntaxError: x"), traceback=trace)) == "/app/train.py:3"


BOOM = make_failure("b", message="boom")
STUCK = make_plan("abc", restarts=2, crash=crash_kind(BOOM), same_crashes=2, stalled_restarts=4, best_step=10)
AGAIN = make_plan("abc", crash=crash_kind(BOOM), same_crashes=2)
FAILS: dict[str, Any] = {"failures": [BOOM], "settings": {"crash_limits": LIMITS}}
LEFT = make_view(there="ab", plan=STUCK, probes=answers("b"), **FAILS)

PLANNING = {
    "the third of its kind waits 2 s from the failure":
        case("wait 1.5 s", plan=AGAIN, probes=answers("bc"), **FAILS, failed_at=NOW - 0.5),
    "the third of its kind is restarted after 2 s":
        case("plan 2: a b c, WorkerFailed, 1 restarts", plan=AGAIN, probes=answers("bc"), **FAILS, failed_at=NOW - 2.0),
    "all members are probed before any wait": case("probe b c", plan=AGAIN, **FAILS, failed_at=NOW - 0.5),
    "five restarts without progress end the job":
        case("outcome failed because of b", plan=STUCK, probes=answers("bc"), **FAILS),
    "progress is restarted at once":
        case("plan 2: a b c, WorkerFailed, 3 restarts", plan=STUCK, probes=answers("bc"), **FAILS, step=11),
    "a lost member is replaced without delay and does not count": Case(LEFT, "plan 2: a b, MemberLost, 2 restarts"),
    "a joiner does not change the delay":
        case("wait 1.5 s", there=members("abcd", d={"seen_at": NOW - 5}), plan=AGAIN, probes=answers("bcd"), **FAILS,
            failed_at=NOW - 0.5),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANNING.values(), ids=PLANNING)
def test_the_planner_delays_restarts_and_ends_crash_loops(case: Case) -> None:
    assert describe(next_plan(case.view, NOW)) == case.does


def test_the_crash_history_is_carried_from_plan_to_plan() -> None:
    again = next_plan(make_view(plan=make_plan("abc"), probes=answers("bc"), failures=[BOOM], step=3), NOW)
    assert isinstance(again, ProposePlan)
    first = CrashHistory(crash=crash_kind(BOOM), same_crashes=1, stalled_restarts=0, best_step=3, trained=True)
    assert again.crashes == first
    lost = next_plan(LEFT, NOW)
    assert isinstance(lost, ProposePlan)
    assert lost.crashes == CrashHistory(crash=crash_kind(BOOM), same_crashes=2, stalled_restarts=4, best_step=10)


RAISED = dataclasses.replace(make_failure("b", message="ImportError: x"), traceback=TRACE)
TWICE = make_plan("abc", restarts=1, crash=crash_kind(RAISED), same_crashes=1)


def after_raised(plan: Plan, spec: SpecValue | None = None) -> Action | None:
    settings = {"crash_limits": OWN}
    return next_plan(make_view(plan=plan, spec=spec, probes=answers("bc"), failures=[RAISED], settings=settings), NOW)


def test_the_outcome_names_the_exception_and_its_line() -> None:
    action = after_raised(TWICE)
    assert isinstance(action, PublishOutcome)
    assert action.outcome.reason == "ScriptFails"
    assert "ImportError: x; the script failed twice at /app/train.py:3" in action.outcome.message


def test_a_script_is_restarted_if_the_operator_says_so_or_the_run_has_trained() -> None:
    allowed = after_raised(TWICE, SpecValue(min=2, max=4, fail_before_first_step=False))
    assert isinstance(allowed, ProposePlan)
    trained = dataclasses.replace(TWICE, value=dataclasses.replace(TWICE.value, trained=True))
    assert isinstance(after_raised(trained), ProposePlan)


def test_a_step_before_a_change_counts_as_training() -> None:
    action = next_plan(make_view(there="ab", plan=make_plan("abc"), probes=answers("b"), step=3), NOW)
    assert isinstance(action, ProposePlan)
    assert action.crashes.trained


def test_the_outcome_of_a_crash_loop_says_why_the_job_ended() -> None:
    view = make_view(plan=STUCK, probes=answers("bc"), **FAILS)
    action = next_plan(view, NOW)
    assert action is not None
    assert action.outcome.reason == "NoProgress"  # type: ignore[attr-defined]
    assert "boom; 5 restarts without progress (no step beyond 10)" in action.reason
