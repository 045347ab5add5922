"""What a new plan contains: its round, members, counters and cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from elasticjob_runtime.contract import MemberState, PlanReason
from elasticjob_runtime.membership.actions import ProposePlan, Wait
from elasticjob_runtime.membership.broken_worlds import broken_plans
from elasticjob_runtime.membership.crash_loop import CrashHistory
from elasticjob_runtime.membership.eligibility import ranks_of
from elasticjob_runtime.membership.failures import assess_crash, crash_history
from elasticjob_runtime.membership.in_place import continues, finished_before, is_finished
from elasticjob_runtime.membership.ranks import by_location
from elasticjob_runtime.membership.replicas import with_store_first
from elasticjob_runtime.membership.view import Member, Plan, View


def propose_plan(
    view: View,
    eligible: Sequence[Member],
    size: int,
    plan_reason: PlanReason,
    why: str = "all members are present",
    *,
    restart: bool = False,
    suspects: tuple[str, ...] = (),
    left_out: str = "",
) -> ProposePlan | Wait:
    """`restart`: the worker processes do not continue in place. `suspects`, `left_out`: see PlanValue; empty: those of
    the current plan."""
    plan = view.store.plan
    rounds = [member.value.round for member in view.store.members.values()]
    last = max(plan.round if plan else 0, view.workers.round, view.store.last_round, *rounds)
    # Losing plan and spec in the store neither resets the restart budget nor lowers the fencing token.
    known_plans = [known for known in (plan, view.workers.plan) if known]
    restarts = max((known.value.restart_count for known in known_plans), default=0)
    members = by_location(eligible[:size], view.store.locations, view.settings.replica_size or 1)
    if view.settings.replica_size:
        members = with_store_first(members, view.settings.replica_size)
        if not members[0].value.stores:
            return Wait(reason=f"{why}; waiting for a member whose agent hosts a store in which the replicas meet")
    return ProposePlan(
        round=last + 1,
        members=members,
        replica_size=view.settings.replica_size,
        replicas=view.store.replicas,
        joined=tuple(_joined(plan, member, last + 1) for member in members),
        reports_steps=bool(view.stepped) or any(known.value.reports_steps for known in known_plans),
        broken=broken_plans(view, plan, plan_reason) if plan else 0,
        suspects=suspects or (plan.value.suspects if plan else ()),
        left_out=left_out or (plan.value.left_out if plan and _is_present(view, plan.value.left_out) else ""),
        in_place=not restart and continues(view, plan_reason, members),
        restart_count=restarts + (plan_reason is PlanReason.WORKER_FAILED),
        plan_reason=plan_reason,
        message=why,
        expected_mod_revision=plan.mod_revision if plan else 0,
        finished=finished_early(view, plan, members, plan_reason) if plan else (),
        caused_at=view.stop.value.caused_at if view.stop else caused_at(view, plan, plan_reason, eligible),
        crashes=assess_crash(view).history if plan_reason is PlanReason.WORKER_FAILED else _unchanged(view),
        store_generation=max([view.spec.store_generation, *(known.value.store_generation for known in known_plans)]),
        run_began=max((known.value.run_began for known in known_plans), default=0),
        reason=f"writing plan {last + 1} with {size} of {len(eligible)} members: {why}",
    )


def _is_present(view: View, incarnation: str) -> bool:
    return any(member.value.incarnation == incarnation for member in view.store.members.values())


def _unchanged(view: View) -> CrashHistory:
    history = crash_history(view)
    return dataclasses.replace(history, trained=history.trained or view.step is not None)


def finished_early(view: View, plan: Plan, members: Sequence[Member], reason: PlanReason) -> tuple[str, ...]:
    """Whose worker processes have ended with code 0 while others train on, in a new plan with `members`: usually of a
    script that decides to stop by something that differs between ranks. Not those that only train again because
    another member was lost at the end."""
    there, again = view.store.members, {member.name for member in members}
    now = [
        name
        for name in ranks_of(plan)
        if name in there and is_finished(there[name]) and there[name].value.round == plan.round
    ]
    found = {*now, *finished_before(view, plan)} - (again if reason is PlanReason.MEMBER_LOST else set())
    return tuple(sorted(found | (set(plan.value.finished) - again)))


def _joined(plan: Plan | None, member: Member, round_number: int) -> int:
    rank = ranks_of(plan).get(member.name)
    return rank.joined if rank is not None and rank.incarnation == member.value.incarnation else round_number


def caused_at(view: View, plan: Plan | None, reason: PlanReason, eligible: Sequence[Member]) -> float:
    """When the cause happened, Unix time; 0: not known."""
    moments: list[float] = []
    if reason is PlanReason.WORKER_FAILED:
        moments = [failure.time for failure in view.store.failures]
    elif reason is PlanReason.MEMBER_LOST:
        moments = [suspicion.value.heard_at for suspicion in view.store.suspicions] or [
            failure.time for failure in view.store.failures
        ]
    elif reason is PlanReason.MEMBER_LEFT:
        in_plan = [view.store.members[name].value for name in ranks_of(plan) if name in view.store.members]
        moments = [member.changed_at for member in in_plan if member.state is MemberState.LEAVING]
    elif reason is PlanReason.MEMBER_JOINED:
        moments = [member.value.changed_at for member in eligible if member.name not in ranks_of(plan)]
    return min((moment for moment in moments if moment), default=0.0)
