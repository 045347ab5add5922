"""Crash loops: how long to wait before the next restart, and when to give up. Pure.

A crash after progress is restarted at once, and so are the first few crashes of one kind without progress. Further ones
wait 1, 2, 4 ... s. Too many consecutive restarts without progress end the job, whatever crashed. Progress is a training
step beyond every step known at an earlier crash; for scripts that report no steps, it is workers that ran for a while.

A script that raises the same exception on the same line twice before it has trained at all fails the job, because
further restarts would not help. It has trained if it has reported a step or a checkpoint, or once its workers have run
for a minute: most scripts that report no steps train by then. Exceptions that are known to be of the network, storage
or peers are no failures of the script.

The plan stores the history, so a new planner knows it.
"""

from __future__ import annotations

import dataclasses
import re

from elasticjob_runtime.contract import PEER_LOST, SCRIPT_FAILS, FailureValue, PlanValue

DEFAULT_STALLED_RESTARTS = 5
"""Default of --max-stalled-restarts for scripts that report steps."""
TRAINED_SECONDS = 60.0
"""Workers that ran for this long have trained, even if they have reported no step, in seconds."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = re.compile(r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3|/elasticjob_runtime/")
_INFRASTRUCTURE = re.compile(
    r"^(?:\w+\.)*(?:OSError|Dist[A-Z]\w+|\w*(?:[Cc]onnect|Timeout|Network|HTTP|URL|SSL|BrokenPipe|gaierror|Fenced"
    r"|ProtocolError|MaxRetryError|ChunkedEncoding|IncompleteRead|LocalEntryNotFound)\w*)"
    # what torch says of sockets, and a service that is overloaded, whatever raises it
    r"|(?i:\bgloo\b|\bnccl\b|\bconnection (?:reset|refused|aborted|closed|timed out)|\bbroken pipe\b)"
    r"|An error occurred \((?:SlowDown|InternalError|ServiceUnavailable|RequestTimeout|Throttling|50\d)\w*\)"
    # our own: of storage, unless it says no, and of processes that do not find each other
    r"|^(?:\w+\.)*(?:Checkpoint|Unreadable)Error: (?:Rank \d+: )?Cannot (?:read|write) "
    r"(?!.*(?:Permission denied|Read-only file system|Not a directory))"
    r"|^(?:\w+\.)*SessionError: (?:no (?:further )?plans?|the (?:processes|snapshot in memory|state of another)) "
)
"""In the message of an exception: it may pass, or its cause is elsewhere."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CrashLimits:
    at_once: int = 3
    """Consecutive crashes of one kind that are restarted without a wait."""
    backoff: float = 0.0
    """Seconds before the next restart after those; doubles with each further crash; 0: never wait."""
    backoff_max: float = 60.0
    """The longest wait, seconds."""
    stable_time: float = 5.0
    """Seconds that workers which report no steps must run for it to count as progress."""
    max_stalled: int | None = 0
    """Consecutive restarts without progress that end the job; 0: no limit; None: DEFAULT_STALLED_RESTARTS if the script
    reports steps, else no limit."""
    fail_before_first_step: bool = False
    """The same exception of the script twice before it has trained ends the job."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CrashHistory:
    """Earlier crashes, as stored in the plan."""

    crash: str = ""
    same_crashes: int = 0
    stalled_restarts: int = 0
    best_step: int | None = None
    trained: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Crash:
    """One failure of the worker group."""

    kind: str
    step: int | None = None
    """Highest step reported since the last start; None: no step was reported."""
    ran_seconds: float = 0.0
    line: str = ""
    """Where the script raised an exception, as file:line; empty: another failure."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CrashAssessment:
    history: CrashHistory
    """To store in the next plan."""
    delay: float = 0.0
    """Seconds to wait after the failure."""
    end: str = ""
    """Why the job ends; empty: it continues."""
    end_reason: str = "NoProgress"


def assess(history: CrashHistory, crash: Crash, limits: CrashLimits) -> CrashAssessment:
    """What to do about a crash, given the earlier ones."""
    progressed = _progressed(history, crash, limits)
    first = not history.crash
    consequence = PEER_LOST in (crash.kind, history.crash)  # of a crash not reported in time: counts as the same
    again = not progressed and not first and (crash.kind == history.crash or consequence)
    steps = [step for step in (history.best_step, crash.step) if step is not None]
    known = CrashHistory(
        crash=history.crash if again and crash.kind == PEER_LOST else crash.kind,
        same_crashes=history.same_crashes + 1 if again else 1,
        stalled_restarts=0 if progressed or first else history.stalled_restarts + 1,
        best_step=max(steps, default=None),
        trained=history.trained or bool(steps) or crash.ran_seconds >= TRAINED_SECONDS,
    )
    if limits.fail_before_first_step and not known.trained and crash.line and crash.kind == history.crash:
        why = f"the script failed twice at {crash.line} before its first step"
        return CrashAssessment(history=known, end=why, end_reason=SCRIPT_FAILS)
    return CrashAssessment(history=known, delay=delay(known.same_crashes, limits), end=_end(known, limits))


def delay(same_crashes: int, limits: CrashLimits) -> float:
    """Seconds before the restart after this many consecutive crashes of one kind: 0 for the first few, then 1, 2, 4 ...
    times the backoff."""
    further = same_crashes - limits.at_once
    return min(limits.backoff_max, limits.backoff * 2.0 ** min(further - 1, 30)) if further > 0 else 0.0


def longest_delay(history: CrashHistory, limits: CrashLimits) -> float:
    """The most seconds that the planner waits before it restarts after the next crash."""
    return delay(history.same_crashes + 1, limits) if history.crash else 0.0


def history_of(plan: PlanValue | None) -> CrashHistory:
    if plan is None:
        return CrashHistory()
    return CrashHistory(
        crash=plan.crash,
        same_crashes=plan.same_crashes,
        stalled_restarts=plan.stalled_restarts,
        best_step=plan.best_step,
        trained=plan.trained,
    )


def crash_kind(failure: FailureValue) -> str:
    """Crashes of one kind count as the same: equal exit status, exception type and line. The exception's text is
    ignored, because it may contain addresses or counters."""
    if failure.reason == PEER_LOST:
        return PEER_LOST
    line = _line(failure).rpartition("/")[2]
    return f"{failure.reason} {failure.exit_code} {line} {failure.message.partition(':')[0]}"[:100]


def script_line(failure: FailureValue) -> str:
    """Where the script raised the exception that ended it, as file:line. Empty: something else ended it."""
    if failure.reason != "ApplicationError" or _INFRASTRUCTURE.search(failure.message):
        return ""
    return _line(failure)


def _line(failure: FailureValue) -> str:
    """The innermost line of the traceback, of the script's own files if it names one."""
    frames = _FRAME.findall(failure.traceback)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    return ":".join((own or frames)[-1]) if frames else ""


def _progressed(history: CrashHistory, crash: Crash, limits: CrashLimits) -> bool:
    if crash.step is None and history.best_step is None:
        return crash.ran_seconds >= limits.stable_time
    return crash.step is not None and (history.best_step is None or crash.step > history.best_step)


def _end(known: CrashHistory, limits: CrashLimits) -> str:
    limit = limits.max_stalled
    if limit is None:
        limit = DEFAULT_STALLED_RESTARTS if known.best_step is not None else 0
    if not limit or known.stalled_restarts < limit:
        return ""
    reached = (
        f"no step beyond {known.best_step}"
        if known.best_step is not None
        else f"no workers ran for {limits.stable_time:g} s"
    )
    return f"{known.stalled_restarts} restarts without progress ({reached})"
