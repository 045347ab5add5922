"""What an agent does next: `decide(view, now) -> Action`. Pure.

The rules are listed in order of precedence, and the first one that returns an action wins.
Each rule compares the actual state with what the store says, so the same view always gives the same action, and a
restarted agent carries on from wherever it stopped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from elasticjob_runtime.contract import ExitCode, FailureValue, MemberState, OutcomeState, SuspicionValue
from elasticjob_runtime.membership.actions import (
    Action,
    Exit,
    ProbePeers,
    PublishFailure,
    PublishState,
    PublishSuspicion,
    Register,
    RestorePlan,
    StartWorkers,
    StopWorkers,
    Subscribe,
    Wait,
    stop_at_once,
)
from elasticjob_runtime.membership.compatibility import exit_if_incompatible
from elasticjob_runtime.membership.eligibility import describe, recent_probe
from elasticjob_runtime.membership.fencing import fence, fence_due, superseded
from elasticjob_runtime.membership.in_place import (
    enter_late,
    in_place_due,
    leave_world_of_replica,
    move_workers,
    report_in_place,
    request_plan,
    warm_up_workers,
)
from elasticjob_runtime.membership.joining import (
    declines_plan,
    exit_if_left_out,
    fails_alone,
    forget_own_failures,
    give_up_joining,
    report_own_failure,
    retry_at,
)
from elasticjob_runtime.membership.leaving import leave_world, longest_leave, stop_leaving
from elasticjob_runtime.membership.plan_rate import limit_rate
from elasticjob_runtime.membership.planned_changes import has_saved, is_planned, prepare_change
from elasticjob_runtime.membership.planner import can_restore, next_plan
from elasticjob_runtime.membership.replicas import (
    can_start,
    cut_due,
    report_cut,
    report_lost_world,
    report_world_over,
    world_here,
)
from elasticjob_runtime.membership.silence import limits
from elasticjob_runtime.membership.succession import members_ahead, plan_broken_since, takeover_delay, wanted_role
from elasticjob_runtime.membership.view import ALIVE, Plan, Role, View, WorkersState

AWAIT_PLAN = 1.0
"""s between two looks at whether an unreachable etcd shows a plan that a neighbour follows."""


def decide(view: View, now: float) -> Action:
    """The next action of this agent."""
    action = _apply_rules(view, now)
    for due in (fence_due(view, now), in_place_due(view, now), retry_at(view), cut_due(view)):
        if isinstance(action, Wait) and due is not None and now < due and (action.until is None or due < action.until):
            action = dataclasses.replace(action, until=due)
    return action


def _apply_rules(view: View, now: float) -> Action:
    rules: tuple[Callable[[View, float], Action | None], ...] = (
        _end_with_job, _leave, _yield_name, fence, _register, exit_if_incompatible, _report_ready, prepare_change,
        report_own_failure, exit_if_left_out, report_cut, report_lost_world, leave_world_of_replica, _follow_plan,
        _report_result, report_world_over, forget_own_failures, give_up_joining, _report_suspects, report_in_place,
        request_plan, _subscribe, _restore_plan, _plan_if_first,
    )  # fmt: skip
    for rule in rules:
        if (action := rule(view, now)) is not None:
            return action
    return Wait(reason=describe(view))


def _end_with_job(view: View, _now: float) -> Action | None:
    """Only the outcome ends the job for every member."""
    outcome = view.store.outcome
    if outcome is None:
        return None
    if view.workers.state in ALIVE:
        reason = f"the job {outcome.state.value}: {outcome.message}"
        if view.workers.saving:
            return Wait(reason=f"stopping the worker processes: {reason}")
        return stop_at_once(view, reason)
    code = ExitCode.SUCCEEDED if outcome.state is OutcomeState.SUCCEEDED else ExitCode.WORKERS_FAILED
    took_part = view.store.registered or view.workers.round
    late = "" if took_part else " before this agent joined; use another --rdzv-id to run it again"
    return Exit(code=code, reason=f"the job {outcome.state.value}{late}: {outcome.message}")


def _leave(view: View, now: float) -> Action | None:
    """Announces it to the other members first, so that they continue at once; then gives the worker processes time to
    save."""
    since = view.leaving_since
    if since is None:
        return None
    me = view.me
    announced = not view.store.registered or (me is not None and me.value.state is MemberState.LEAVING)
    give_up = since + max(view.settings.leave_timeout, longest_leave(view))
    if not announced and now < give_up:
        return PublishState(
            state=MemberState.LEAVING, round=view.workers.round, until=give_up, reason="leaving the job"
        )
    if view.workers.state is WorkersState.RUNNING:
        if action := leave_world(view, now):
            return action
        return stop_leaving(view, now)
    if view.workers.state is WorkersState.STOPPING:
        return Wait(reason="leaving: waiting for the workers to save")
    return Exit(code=view.leaving_code, reason="left the job")


def _yield_name(view: View, _now: float) -> Action | None:
    """Exits if another agent has registered under this member's name: both would write the same keys and the same
    checkpoint."""
    if not view.store.replaced_by:
        return None
    reason = f"another agent registered as {view.settings.me} (incarnation {view.store.replaced_by})"
    if view.workers.state in ALIVE:
        return stop_at_once(view, reason)
    return Exit(code=ExitCode.RESTARTABLE, reason=reason)


def _register(view: View, _now: float) -> Action | None:
    if view.store.registered:
        return None
    state = MemberState.READY if view.warm else MemberState.WARMING
    round_number = view.workers.round
    if view.workers.state is WorkersState.SUCCEEDED:
        state, round_number = MemberState.SUCCEEDED, view.workers.trained_round
    reason = "registering again: etcd lost this member" if view.workers.round else "registering"
    plan, alive = view.workers.plan, view.workers.state in ALIVE
    return Register(
        state=state, round=round_number, stores=view.stores, reason=reason,
        replica=plan.replica if alive and plan is not None else None, world_over=0 if alive else world_here(view),
        plan=plan,
    )  # fmt: skip


def _report_ready(view: View, now: float) -> Action | None:
    """Publishes that this member can start workers, and whether its stores for coming rounds listen: the process that
    hosts them may have died."""
    me = view.me
    if me is None or view.store.role is None:  # nothing is watched yet that would show what was published
        return None
    if me.value.state is MemberState.WARMING and view.warm and now >= (retry_at(view) or now):
        return PublishState(
            state=MemberState.READY, round=view.workers.round, stores=view.stores, reason="ready to start workers"
        )
    if me.value.stores == view.stores or me.value.state is MemberState.LEAVING:
        return None
    reason = (
        "the stores for the next rounds are listening" if view.stores else "the stores for the next rounds are gone"
    )
    return PublishState(state=me.value.state, round=me.value.round, stores=view.stores, reason=reason)


def _follow_plan(view: View, now: float) -> Action | None:
    """Runs what the plan says: its round, or nothing."""
    plan, workers = view.store.plan, view.workers
    if view.runs_plan and (action := warm_up_workers(view) or enter_late(view)):
        return action
    settled = view.runs_plan and (view.stop is not None or workers.state is not WorkersState.NONE)
    settled = settled or (workers.state not in ALIVE and not can_start(view))
    if plan is None or settled or declines_plan(view):
        return None
    if view.runs_plan and superseded(view):
        return _await_later_plan(view, plan, now)
    reason = f"plan {plan.round}: {plan.value.message or plan.value.reason.value}"
    if workers.state in ALIVE:
        return move_workers(view, plan, reason) or _stop_for(view, plan, reason)
    if plan.rank is None:
        return warm_up_workers(view)
    if plan.round > workers.round:
        return StartWorkers(plan=plan, alone=plan.value.in_place, reason=reason)
    if (me := view.me) is not None and me.value.round <= plan.round:
        return _request_later_plan(view, plan)
    return None


def _await_later_plan(view: View, plan: Plan, now: float) -> Action | None:
    """A neighbour has followed a later plan. If a working etcd does not show it, it was restored from a backup, and the
    members that followed that plan may be gone, too."""
    me, until = view.me, view.peer_round_at + view.settings.reregister_grace
    works = view.lease_expires_at is not None and now < view.lease_expires_at
    if now < until or not works:
        reason = f"waiting to see plan {view.peer_round}, which a neighbour already follows"
        return Wait(until=max(until, now + AWAIT_PLAN), reason=reason)
    return _request_later_plan(view, plan) if me is not None and me.value.round <= plan.round else None


def _request_later_plan(view: View, plan: Plan) -> Action:
    """Publishing a later round makes the planner write a plan that this member can run."""
    workers = view.workers
    if plan.round < (last := max(workers.round, view.peer_round)):
        cause = f"etcd was restored from a backup: plan {plan.round} cannot run after round {last}"
    else:
        cause = f"the workers of plan {plan.round} were stopped"
    after = max(workers.round, view.store.last_round, view.peer_round, plan.round + 1)
    return PublishState(
        state=MemberState.READY, round=after, stores=view.stores, reason=f"{cause}; requesting a later plan"
    )


def _stop_for(view: View, plan: Plan, reason: str) -> Action:
    """Stops the old workers at once, unless they can save and did not see this planned change coming."""
    workers = view.workers
    planned = is_planned(plan.value, after=workers.round) and not has_saved(view)
    if workers.state is WorkersState.RUNNING and workers.saves and planned:
        return StopWorkers(grace=view.settings.shutdown_grace, reason=f"{reason}; the workers get time to save")
    return stop_at_once(view, reason)


def _report_result(view: View, _now: float) -> Action | None:
    """Publishes how this round's workers ended, once."""
    workers = view.workers
    if not view.runs_plan or view.store.plan is None or view.store.plan.rank is None:
        return None
    if workers.failure is not None and view.stop is None and not _is_reported(view, workers.failure):
        failure = dataclasses.replace(workers.failure, joining=fails_alone(view), replica_world=world_here(view))
        return PublishFailure(failure=failure, reason=f"a worker process failed: {workers.failure.message}")
    if workers.state is WorkersState.SUCCEEDED and (me := view.me) is not None:
        if me.value.state is MemberState.SUCCEEDED and me.value.round == workers.trained_round:
            return None
        return PublishState(
            state=MemberState.SUCCEEDED,
            round=workers.trained_round,
            stores=view.stores,
            reason="all local worker processes exited with code 0",
        )
    return None


def _is_reported(view: View, failure: FailureValue) -> bool:
    """The planner sees all failures, and trusts only what it sees: a store that came back empty has lost them."""
    if view.store.role is Role.PLANNER:
        return any(other.member == failure.member for other in view.store.failures)
    return view.reported_failure >= failure.round


def _report_suspects(view: View, _now: float) -> Action | None:
    """Publishes which neighbour has stopped sending heartbeats, and retracts that when they resume."""
    plan = view.store.plan
    if plan is None or plan.rank is None or not view.runs_plan:
        return None
    me = view.settings.me
    reported = {report.value.suspect: report.value for report in view.store.suspicions if report.value.by == me}
    if back := sorted(name for name in reported if name not in view.silent):
        return PublishSuspicion(suspicion=reported[back[0]], retract=True, reason=f"{back[0]} sends heartbeats again")
    if lost := sorted(view.silent - reported.keys()):
        suspicion = SuspicionValue(suspect=lost[0], by=me, round=plan.round)
        return PublishSuspicion(suspicion=suspicion, reason=f"no heartbeat from {lost[0]}")
    return None


def _subscribe(view: View, now: float) -> Action | None:
    """Watches what this member's position in the succession requires, and no more."""
    role, predecessor, reason = wanted_role(view, now)
    if view.store.role is role and (role is Role.PLANNER or view.store.predecessor == predecessor):
        return None
    return Subscribe(role=role, predecessor=predecessor, reason=reason)


def _restore_plan(view: View, now: float) -> Action | None:
    """The store came back empty while the job was running: the leader writes the plan back. If it does not, a new plan
    is made."""
    plan, me = view.workers.plan, view.me
    if (
        view.store.plan is not None
        or plan is None
        or view.store.role is None
        or me is None
        or plan.round < view.store.last_round
    ):
        return None
    if plan.rank is not None and plan.rank.group_rank == 0:
        return RestorePlan(plan=plan, reason=f"etcd lost plan {plan.round}: writing it again")
    until = me.seen_at + view.settings.reregister_grace
    if now < until:
        return Wait(until=until, reason=f"etcd lost plan {plan.round}: waiting for {plan.value.leader} to restore it")
    if view.store.role is Role.PLANNER and can_restore(view):
        return RestorePlan(
            plan=plan, reason=f"etcd lost plan {plan.round}, and {plan.value.leader} is gone: writing it again"
        )
    return None


def _plan_if_first(view: View, now: float) -> Action | None:
    """Plans, if no reachable member is ahead of this one in the succession."""
    broken_since = plan_broken_since(view)
    if view.store.role is not Role.PLANNER:
        if broken_since is None:
            return None
        return Wait(until=broken_since + takeover_delay(view), reason="waiting for a new plan")
    ahead = members_ahead(view)
    if not ahead:
        return limit_rate(view, next_plan(view, now), now)
    if broken_since is None:
        return Wait(reason=f"{ahead[0].name} is the planner")
    if to_probe := tuple(member for member in ahead if recent_probe(view, member, now) is None):
        timeout = limits(view.store.plan.value if view.store.plan else None).answer
        reason = f"probing the {len(to_probe)} members ahead of this one in the succession"
        return ProbePeers(members=to_probe, timeout=timeout, reason=reason)
    return Wait(until=now + view.settings.probe_age, reason=f"waiting for {ahead[0].name} to make a new plan")
