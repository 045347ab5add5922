"""The planner's judgement: is a new plan due, with whom, in which order - or is the job over?

Called by `decide` on the agent that leads. Rules, in this order:

1. Nobody planned yet: plan as soon as everybody wanted is there, or a short grace after the last join once there are
   enough.
2. The plan is broken (a member lost or leaving, a worker failed): ask the others whether they are there (an answer
   takes a millisecond, a lease takes seconds), then plan from those who are. A failure beyond the budget ends the job,
   one that came again without progress waits (crash_loop.py); a loss is free.
3. Everybody succeeded: so has the job.
4. More members, or fewer wanted: plan, joins batched.

Before a planned change (a leave, a join, a resize), workers that handle SIGTERM get time to save; only then is the plan
made (planned_changes.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_runtime.contract import MemberState, OutcomeState, OutcomeValue, PlanReason
from elasticjob_runtime.membership.actions import (
    Action,
    ProbePeers,
    ProposePlan,
    PublishOutcome,
    Wait,
)
from elasticjob_runtime.membership.eligibility import (
    answered,
    candidates,
    chosen,
    doing,
    fitting,
    known_unreachable,
    names,
    ranks_of,
    unasked,
)
from elasticjob_runtime.membership.failures import assess_crash, crashes, delay_or_end, first_failure, said
from elasticjob_runtime.membership.planned_changes import let_save, patience, saving
from elasticjob_runtime.membership.sizes import group_size, largest
from elasticjob_runtime.membership.view import (
    Member,
    Plan,
    Stop,
    View,
)


def next_plan(view: View, now: float) -> Action | None:
    """What the planner does; None: nothing is due."""
    plan = view.store.plan
    if plan is None:
        return _being_restored(view, now) or _first_plan(view, now)
    if missing := _still_registering(view, plan, now):
        until = view.store.members[view.settings.me].seen_at + view.settings.reregister_grace
        return Wait(until=until, reason=f"the store had lost all members: {names(missing)} may still register again")
    if suspects := _suspects(view, plan, now):
        who = names([member.name for member in suspects])
        return ProbePeers(members=suspects, reason=f"{who} fell silent: asking")
    stop = view.stop
    if stop is None and (broken := _what_broke(view, plan)):
        return _repair(view, plan, broken, now)
    if _all_succeeded(view, plan):
        message = f"all {plan.value.world_size} workers exited with 0"
        outcome = OutcomeValue(
            state=OutcomeState.SUCCEEDED, reason="WorkersSucceeded", message=message, round=plan.round
        )
        return PublishOutcome(outcome=outcome, expected_mod_revision=plan.mod_revision, reason=message)
    if stop is not None:
        return _after_saving(view, plan, stop, now)
    return _resize(view, plan, now) or _ask_again(view, now)


def _after_saving(view: View, plan: Plan, stop: Stop, now: float) -> Action:
    """A planned change, from whoever is there when all have saved. Nothing else shortens it: a worker may be
    writing."""
    until, why = patience(view, stop), stop.value.message
    if now < until and (names_saving := saving(view, plan)):
        return Wait(until=until, reason=f"{why}; the workers of {names(names_saving)} save")
    there = candidates(view)
    size = group_size(view.spec, len(there))
    if size is None:
        return _park(view, now, f"{why}; {_too_few(view, len(there))}")
    return _propose(view, there, size, stop.value.reason, why)


def _first_plan(view: View, now: float) -> Action:
    there = candidates(view)
    size = group_size(view.spec, len(there))
    if size is None:
        return _park(view, now, _too_few(view, len(there)))
    if size < largest(view.spec) and not _all_named_present(view, there):
        if warming := [member for member in view.store.members.values() if _warms_up(view, member, now)]:
            until = max(member.seen_at for member in warming) + _patience(view)
            return Wait(until=until, reason=f"{names([member.name for member in warming])} warm up")
        due = _latest_arrival(there) + view.settings.start_grace
        if now < due:
            return Wait(
                until=due,
                reason=f"{len(there)} of {largest(view.spec)} wanted members are there; a moment for the rest",
            )
    return _propose(view, there, size, PlanReason.START)


def _what_broke(view: View, plan: Plan) -> tuple[PlanReason, str] | None:
    """The cause that makes the current plan impossible, the free ones first: who lost a peer also sees its own workers
    fail."""
    members = view.store.members
    lost: list[str] = []
    left: list[str] = []
    for name, rank in ranks_of(plan).items():
        member = members.get(name)
        if member is None or member.value.incarnation != rank.incarnation or known_unreachable(view, member):
            lost.append(name)
        elif member.value.state is MemberState.LEAVING or name in view.spec.draining:
            left.append(name)
    if unknown := plan.value.size - len(ranks_of(plan)):
        lost.append(f"{unknown} members whose ranks the store lost")
    if lost:
        return PlanReason.MEMBER_LOST, f"lost {names(lost)}"
    if left:
        return PlanReason.MEMBER_LEFT, f"{names(left)} left"
    if ahead := [name for name in ranks_of(plan) if members[name].value.round > plan.round]:
        return (
            PlanReason.START,
            f"{names(ahead)} cannot go on with it: their workers were stopped, or the store was set back",
        )
    if view.store.failures:
        return PlanReason.WORKER_FAILED, said(first_failure(view.store.failures))
    return None


def _being_restored(view: View, now: float) -> Action | None:
    """There was a job before the store lost everything: its leader puts the plan back, if it can."""
    me = view.settings.me
    witnesses = [
        member
        for member in view.store.members.values()
        if member.value.round or (member.name == me and view.store.last_round)
    ]
    if not witnesses:
        return None
    until = min(member.seen_at for member in witnesses) + view.settings.reregister_grace
    if now >= until:
        return None
    return Wait(
        until=until,
        reason=f"the store lost the plan that {names([member.name for member in witnesses])} knew: it may be put back",
    )


def _still_registering(view: View, plan: Plan, now: float) -> list[str]:
    """Members of the plan that are missing because the store lost everything, not because they are gone."""
    me = view.me
    if me is None or me.value.round < plan.round or now >= me.seen_at + view.settings.reregister_grace:
        return []
    unknown = plan.value.size - len(ranks_of(plan))
    return [name for name in ranks_of(plan) if name not in view.store.members] + ["others"] * bool(unknown)


def _repair(view: View, plan: Plan, broken: tuple[PlanReason, str], now: float) -> Action:
    reason, why = broken
    if reason is PlanReason.WORKER_FAILED:
        if asking := _ask_present(view, plan, why, now, since=view.store.failed_at):
            return asking
        if action := delay_or_end(view, plan, now):
            return action
    there = candidates(view)
    if saved_first := let_save(view, plan, reason, why, _caused_at(view, plan, reason, there)):
        return saved_first
    size = group_size(view.spec, len(there))
    if size is None:
        return _park(view, now, f"{why}; {_too_few(view, len(there))}")
    if reason is PlanReason.MEMBER_LOST and (asking := _ask_present(view, plan, why, now)):
        return asking
    return _propose(view, there, size, reason, why)


def _ask_present(view: View, plan: Plan, why: str, now: float, since: float = 0.0) -> Action | None:
    """`since`: only an answer to a question asked later counts. Who was there before a failure may be its cause."""
    if asked := unasked(view, plan, now, since):
        return ProbePeers(members=asked, reason=f"{why}: asking {len(asked)} members whether they are there")
    return None


def _park(view: View, now: float, why: str) -> Action:
    """Too few to train. Who did not answer once may be back."""
    return _ask_again(view, now, why) or Wait(reason=why)


def _resize(view: View, plan: Plan, now: float) -> Action | None:
    there = candidates(view)
    size = group_size(view.spec, len(there))
    if size is None or size == plan.value.size or any(member.value.state is MemberState.SUCCEEDED for member in there):
        return None
    if size < plan.value.size:
        return _plan_change(view, plan, there, size, PlanReason.RESIZED, f"{size} members wanted")
    new = there[plan.value.size :]
    if size < largest(view.spec) and (wait := _more_may_join(view, there, new, now)):
        return wait
    if silent := tuple(member for member in new if not answered(view, member, now)):
        return ProbePeers(members=silent, reason=f"asking {len(silent)} newcomers whether they can be reached")
    who = names([member.name for member in chosen(view, there, size) if member in new])
    return _plan_change(view, plan, there, size, PlanReason.MEMBER_JOINED, f"{who} joined")


def _plan_change(view: View, plan: Plan, there: Sequence[Member], size: int, reason: PlanReason, why: str) -> Action:
    return let_save(view, plan, reason, why, _caused_at(view, plan, reason, there)) or _propose(
        view, there, size, reason, why
    )


def _more_may_join(view: View, there: Sequence[Member], new: Sequence[Member], now: float) -> Action | None:
    """Joins are batched, from when they are ready: each plan stops everybody. Those that still import are waited for,
    but not for long."""
    settings, first = view.settings, min(member.ready_at for member in new)
    warming = [member for member in fitting(view) if _warms_up(view, member, now)]
    larger = (group_size(view.spec, len(there) + len(warming)) or 0) > (group_size(view.spec, len(there)) or 0)
    joined = f"{names([member.name for member in new])} joined"
    if larger and now < first + settings.warming_delay:
        reason = (
            f"{joined}; {names([member.name for member in warming])} warm up: a moment, so that one restart is for all"
        )
        return Wait(until=first + settings.warming_delay, reason=reason)
    due = max(member.ready_at for member in new) + settings.join_delay
    return Wait(until=due, reason=f"{joined}; a moment for others") if now < due else None


def _ask_again(view: View, now: float, why: str = "") -> Action | None:
    """A member that did not answer once may be back: ask again while its lease lives. Nothing to tell of where it is
    not missed: `why`, or what goes on anyway, stays what is said."""
    named = {one.value.suspect for one in view.store.suspicions} - {view.settings.me}
    members = view.store.members.values()
    silent = [
        member
        for member in members
        if known_unreachable(view, member) or (member.name in named and member.name in view.probes)
    ]
    if not silent:
        return None
    missed = [member.name for member in silent if member.name in ranks_of(view.store.plan)]
    said = why or ("" if missed else doing(view))
    if due := tuple(member for member in silent if not answered(view, member, now)):
        return ProbePeers(members=due, reason=said or f"asking {names([member.name for member in due])} again")
    next_time = min(view.probes[member.name].at for member in silent) + view.settings.probe_age
    return Wait(until=next_time, reason=said or f"{names(missed)} fell silent; asking again soon")


def _propose(
    view: View, there: Sequence[Member], size: int, plan_reason: PlanReason, why: str = "everybody is there"
) -> ProposePlan:
    plan = view.store.plan
    rounds = [member.value.round for member in view.store.members.values()]
    last = max(plan.round if plan else 0, view.workers.round, view.store.last_round, *rounds)
    # A store that lost plan and spec gives no budget back, and takes no fencing token away.
    followed = [one for one in (plan, view.workers.plan) if one]
    restarts = max((one.value.restart_count for one in followed), default=0)
    return ProposePlan(
        round=last + 1,
        members=chosen(view, there, size),
        restart_count=restarts + (plan_reason is PlanReason.WORKER_FAILED),
        plan_reason=plan_reason,
        message=why,
        expected_mod_revision=plan.mod_revision if plan else 0,
        caused_at=view.stop.value.caused_at if view.stop else _caused_at(view, plan, plan_reason, there),
        crashes=assess_crash(view).history if plan_reason is PlanReason.WORKER_FAILED else crashes(view),
        store_generation=max([view.spec.store_generation, *(one.value.store_generation for one in followed)]),
        run_began=max((one.value.run_began for one in followed), default=0),
        reason=f"{why}; plan {last + 1} with {size} of {len(there)} members",
    )


def _caused_at(view: View, plan: Plan | None, reason: PlanReason, there: Sequence[Member]) -> float:
    """When it happened, Unix time, as far as anybody has told; 0: nobody has."""
    moments: list[float] = []
    if reason is PlanReason.WORKER_FAILED:
        moments = [failure.time for failure in view.store.failures]
    elif reason is PlanReason.MEMBER_LOST:
        moments = [one.value.heard_at for one in view.store.suspicions]
    elif reason is PlanReason.MEMBER_LEFT:
        in_plan = [view.store.members[name].value for name in ranks_of(plan) if name in view.store.members]
        moments = [member.changed_at for member in in_plan if member.state is MemberState.LEAVING]
    elif reason is PlanReason.MEMBER_JOINED:
        moments = [member.value.changed_at for member in there if member.name not in ranks_of(plan)]
    return min((moment for moment in moments if moment), default=0.0)


def _suspects(view: View, plan: Plan, now: float) -> tuple[Member, ...]:
    """Members of the plan that a neighbour does not hear, and that were not asked just now."""
    named = {one.value.suspect for one in view.store.suspicions}
    there = [member for member in candidates(view) if member.name in named and member.name in ranks_of(plan)]
    return tuple(member for member in there if not answered(view, member, now))


def _all_succeeded(view: View, plan: Plan) -> bool:
    members = view.store.members
    return all(
        name in members
        and members[name].value.state is MemberState.SUCCEEDED
        and members[name].value.round == plan.round
        for name in ranks_of(plan)
    )


def _warms_up(view: View, member: Member, now: float) -> bool:
    return member.value.state is MemberState.WARMING and now < member.seen_at + _patience(view)


def _patience(view: View) -> float:
    """s for which those that are ready wait for one that imports: long before the very first plan, for nobody trains
    yet and the first step would be taken twice; short where a job goes on."""
    began = view.store.last_round or any(member.value.round for member in view.store.members.values())
    return view.settings.warming_delay if began and view.store.plan is None else view.settings.warm_timeout


def _all_named_present(view: View, there: Sequence[Member]) -> bool:
    return bool(view.spec.members) and set(view.spec.members) <= {member.name for member in there}


def _latest_arrival(members: Sequence[Member]) -> float:
    return max((member.seen_at for member in members), default=0.0)


def _too_few(view: View, have: int) -> str:
    return f"waiting for members: {have} there, at least {view.spec.min} needed"
