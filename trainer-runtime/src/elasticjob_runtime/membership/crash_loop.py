"""Restarts that do not help: how long to wait before the next, and when to stop. Pure.

A crash after progress is restarted at once. So are the first few of one kind without progress between; further ones
wait 1, 2, 4 ... s. Restarts in a row that bring no progress end the job, whatever crashes. Progress is a training step
beyond any known at an earlier crash, where the script reports steps; of a script that reports none, workers that ran
for a while. What has to be remembered is in the plan, so a new planner knows it.
"""

from __future__ import annotations

import dataclasses

from elasticjob_runtime.contract import PEER_LOST, FailureValue, PlanValue

AUTO_STALLED_RESTARTS = 5
"""Restarts without progress that end the job of a script that reports steps, where --max-stalled-restarts is not
given."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CrashLimits:
    """From the agent's flags."""

    at_once: int = 3
    """Crashes of one kind in a row that are restarted without a wait."""
    backoff: float = 0.0
    """s before the restart after one more than these; doubles with every further one; 0: never wait."""
    backoff_max: float = 60.0
    """s, the longest wait."""
    stable_time: float = 5.0
    """s that workers which report no steps must run for it to count as progress."""
    max_stalled: int | None = 0
    """Restarts in a row without progress that end the job; 0: no end; None: AUTO_STALLED_RESTARTS where the script
    reports steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CrashHistory:
    """What the plan remembers of earlier crashes."""

    crash: str = ""
    same_crashes: int = 0
    stalled_restarts: int = 0
    best_step: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Crash:
    """One failure of the worker group."""

    kind: str
    step: int | None = None
    """Highest step reported since the last start; None: none was."""
    ran_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CrashAssessment:
    history: CrashHistory
    """For the next plan."""
    delay: float = 0.0
    """s to wait after the failure."""
    end: str = ""
    """Why the job ends instead; empty: it does not."""


def assess(history: CrashHistory, crash: Crash, limits: CrashLimits) -> CrashAssessment:
    """What a crash means, after those before it."""
    progressed = _progressed(history, crash, limits)
    first = not history.crash
    consequence = PEER_LOST in (crash.kind, history.crash)  # of a crash that nobody told in time: as good as the same
    again = not progressed and not first and (crash.kind == history.crash or consequence)
    steps = [step for step in (history.best_step, crash.step) if step is not None]
    known = CrashHistory(
        crash=history.crash if again and crash.kind == PEER_LOST else crash.kind,
        same_crashes=history.same_crashes + 1 if again else 1,
        stalled_restarts=0 if progressed or first else history.stalled_restarts + 1,
        best_step=max(steps, default=None),
    )
    return CrashAssessment(history=known, delay=delay(known.same_crashes, limits), end=_end(known, limits))


def delay(same_crashes: int, limits: CrashLimits) -> float:
    """s before the restart after this many crashes of one kind in a row: 0 for the first few, then 1, 2, 4 ... times
    the backoff."""
    further = same_crashes - limits.at_once
    return min(limits.backoff_max, limits.backoff * 2.0 ** min(further - 1, 30)) if further > 0 else 0.0


def longest_delay(history: CrashHistory, limits: CrashLimits) -> float:
    """s that the planner may take before it restarts the next crash, whatever it is."""
    return delay(history.same_crashes + 1, limits) if history.crash else 0.0


def history_of(plan: PlanValue | None) -> CrashHistory:
    if plan is None:
        return CrashHistory()
    return CrashHistory(
        crash=plan.crash,
        same_crashes=plan.same_crashes,
        stalled_restarts=plan.stalled_restarts,
        best_step=plan.best_step,
    )


def kind_of(failure: FailureValue) -> str:
    """Two crashes of one kind count as the same: how it ended, and the exception without its text, which may name
    anything."""
    if failure.reason == PEER_LOST:
        return PEER_LOST
    return f"{failure.reason} {failure.exit_code} {failure.message.partition(':')[0]}"[:100]


def _progressed(history: CrashHistory, crash: Crash, limits: CrashLimits) -> bool:
    if crash.step is None and history.best_step is None:
        return crash.ran_seconds >= limits.stable_time
    return crash.step is not None and (history.best_step is None or crash.step > history.best_step)


def _end(known: CrashHistory, limits: CrashLimits) -> str:
    most = limits.max_stalled
    if most is None:
        most = AUTO_STALLED_RESTARTS if known.best_step is not None else 0
    if not most or known.stalled_restarts < most:
        return ""
    reached = (
        f"no step beyond {known.best_step}"
        if known.best_step is not None
        else f"no group ran for {limits.stable_time:g} s"
    )
    return f"{known.stalled_restarts} restarts without progress ({reached})"
