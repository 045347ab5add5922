"""After a failure: which one to report, and whether to restart the workers now, later or not at all. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from elasticjob_runtime.contract import (
    MAX_RESTARTS_EXCEEDED,
    PEER_LOST,
    FailureValue,
    OutcomeState,
    OutcomeValue,
    first_failure,
    may_follow_from_another,
)
from elasticjob_runtime.membership import crash_loop
from elasticjob_runtime.membership.actions import Action, PublishOutcome, Wait
from elasticjob_runtime.membership.eligibility import join_names, ranks_of
from elasticjob_runtime.membership.view import Plan, View


def describe_failure(failure: FailureValue) -> str:
    rank = f"rank {failure.rank}{' of the replica' if failure.replica_world else ''}"
    return f"{rank} on {failure.member} failed: {failure.message}"


def may_follow_from_loss(view: View, plan: Plan) -> bool:
    """Whether the failures may be due to the loss of a member. Worker processes that continue in place do not fail
    because another one is gone."""
    return not plan.value.in_place or any(failure.reason == PEER_LOST for failure in view.store.failures)


def delay_or_end(view: View, plan: Plan, now: float) -> Action | None:
    """Waits, or ends the job; None: restart now."""
    if wait := _await_joiners(view, plan, now) or _await_culprit(view, plan, now):
        return wait
    assessment = assess_crash(view)
    used = f"{plan.value.restart_count} of {view.max_restarts} restarts used"
    if plan.value.restart_count >= view.max_restarts:
        return _await_failures(view, plan, now) or _give_up(view, plan, MAX_RESTARTS_EXCEEDED, used)
    if assessment.end:
        return _await_failures(view, plan, now) or _give_up(view, plan, assessment.end_reason, assessment.end)
    until = view.store.failed_at + assessment.delay
    if now < until:
        times = assessment.history.same_crashes
        why = f"{describe_failure(first_failure(view.store.failures))}: the same crash {times} times without progress"
        return Wait(until=until, reason=f"{why}; restarting after {assessment.delay:g} s")
    return None


def assess_crash(view: View, failures: Sequence[FailureValue] = ()) -> crash_loop.CrashAssessment:
    """`failures`: those to assess. Default: those in the store."""
    failures = failures or view.store.failures
    steps = [step for step in (view.step, *(failure.step for failure in failures)) if step is not None]
    first = first_failure(failures)
    crash = crash_loop.Crash(
        kind=crash_loop.crash_kind(first),
        step=max(steps, default=None),
        ran_seconds=max(failure.ran_seconds for failure in failures),
        line=crash_loop.script_line(first),
    )
    limits = view.settings.crash_limits
    if view.spec.fail_before_first_step is False:
        limits = dataclasses.replace(limits, fail_before_first_step=False)
    return crash_loop.assess(crash_history(view), crash, limits)


def crash_history(view: View) -> crash_loop.CrashHistory:
    """The crashes so far; remembered even if the store lost its plan."""
    plan = view.store.plan or view.workers.plan
    return crash_loop.history_of(plan.value if plan else None)


def _await_joiners(view: View, plan: Plan, now: float) -> Action | None:
    """All that is known of the failures follows from another one. It may be one of a member that has just joined, which
    costs no restart."""
    known, until = (
        {failure.member for failure in view.store.failures},
        view.store.failed_at + view.settings.failures_grace,
    )
    if now >= until or any(failure.reason != PEER_LOST for failure in view.store.failures):
        return None
    joined = [name for name, rank in ranks_of(plan).items() if rank.joined == plan.round > plan.value.oldest]
    silent = [name for name in joined if name not in known]
    return Wait(until=until, reason=f"waiting for {join_names(silent)} to report failures") if silent else None


def _await_culprit(view: View, plan: Plan, now: float) -> Action | None:
    """Ranks called different collectives, and the recorders of all tell which one differs."""
    first = first_failure(view.store.failures)
    if first.reason == PEER_LOST or not may_follow_from_another(first):
        return None
    return _await_failures(view, plan, now, describe_failure(first))


def _await_failures(view: View, plan: Plan, now: float, why: str = "no restarts left") -> Action | None:
    """Gives the other members time to report their failures, because the outcome names the first one."""
    silent = ranks_of(plan).keys() - {failure.member for failure in view.store.failures}
    until = view.store.failed_at + view.settings.failures_grace
    if not silent or now >= until:
        return None
    return Wait(until=until, reason=f"{why}; waiting for {join_names(sorted(silent))} to report failures")


def _give_up(view: View, plan: Plan, reason: str, why: str) -> Action:
    failure = first_failure(view.store.failures)
    message = f"{describe_failure(failure)}; {why}"
    outcome = OutcomeValue(
        state=OutcomeState.FAILED,
        reason=reason,
        message=message,
        round=plan.round,
        failure={field: getattr(failure, field) for field in failure.__slots__},
    )
    return PublishOutcome(outcome=outcome, expected_mod_revision=plan.mod_revision, reason=message)
