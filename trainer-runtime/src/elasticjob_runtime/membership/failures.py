"""After a failure: which one is told, and whether the workers restart, wait, or the job is over. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob_runtime.contract import PEER_LOST, FailureValue, OutcomeState, OutcomeValue
from elasticjob_runtime.membership import crash_loop
from elasticjob_runtime.membership.actions import (
    Action,
    PublishOutcome,
    Wait,
)
from elasticjob_runtime.membership.eligibility import names, ranks_of
from elasticjob_runtime.membership.view import (
    Plan,
    View,
)


def first_failure(failures: Iterable[FailureValue]) -> FailureValue:
    """The earliest, but rather a cause than who lost a peer by it. A peer of the failed worker fails too, a little
    later: by its own clock, which is close enough on one network."""
    return min(failures, key=lambda failure: (failure.reason == PEER_LOST, failure.time))


def said(failure: FailureValue) -> str:
    return f"rank {failure.rank} on {failure.member} failed: {failure.message}"


def delay_or_end(view: View, plan: Plan, now: float) -> Action | None:
    """None: restart now. Else the end of the job, or a wait."""
    verdict = assess_crash(view)
    used = f"{plan.value.restart_count} of {view.max_restarts} restarts used"
    if plan.value.restart_count >= view.max_restarts:
        return _hear_all(view, plan, now) or _give_up(view, plan, "MaxRestartsExceeded", used)
    if verdict.end:
        return _hear_all(view, plan, now) or _give_up(view, plan, "NoProgress", verdict.end)
    until = view.store.failed_at + verdict.delay
    if now < until:
        times = verdict.history.same_crashes
        why = f"{said(first_failure(view.store.failures))}: the same crash {times} times without progress"
        return Wait(until=until, reason=f"{why}; restarting after {verdict.delay:g} s")
    return None


def assess_crash(view: View) -> crash_loop.CrashAssessment:
    failures = view.store.failures
    steps = [step for step in (view.step, *(failure.step for failure in failures)) if step is not None]
    crash = crash_loop.Crash(
        kind=crash_loop.kind_of(first_failure(failures)),
        step=max(steps, default=None),
        ran_seconds=max(failure.ran_seconds for failure in failures),
    )
    return crash_loop.assess(crashes(view), crash, view.settings.crash_limits)


def crashes(view: View) -> crash_loop.CrashHistory:
    """A store that lost its plan does not make crashes forgotten."""
    plan = view.store.plan or view.workers.plan
    return crash_loop.history_of(plan.value if plan else None)


def _hear_all(view: View, plan: Plan, now: float) -> Action | None:
    """The verdict names the first failure: time for the others to tell theirs."""
    silent = ranks_of(plan).keys() - {failure.member for failure in view.store.failures}
    until = view.store.failed_at + view.settings.verdict_grace
    if not silent or now >= until:
        return None
    return Wait(until=until, reason=f"no restarts left; hearing from {names(sorted(silent))} what failed first")


def _give_up(view: View, plan: Plan, reason: str, why: str) -> Action:
    failure = first_failure(view.store.failures)
    message = f"{said(failure)}; {why}"
    outcome = OutcomeValue(
        state=OutcomeState.FAILED,
        reason=reason,
        message=message,
        round=plan.round,
        failure={field: getattr(failure, field) for field in failure.__slots__},
    )
    return PublishOutcome(outcome=outcome, expected_mod_revision=plan.mod_revision, reason=message)
