"""The planner's decisions: is a new plan due, with which members in which order, or is the job over?

`decide` calls this on the member that is first in the succession. Rules, in this order:

1. There is no plan: make one when all wanted members are present, or, once there are enough, a short grace after the
   last join.
2. The plan is broken (a member is lost or leaving, a worker process failed): probe the other members, since an answer
   takes a millisecond and a lease expires in seconds, then plan with those that answered. Not after a worker process
   that continues in place failed by itself. A failure beyond the restart
   budget ends the job, and repeated crashes without progress wait (crash_loop.py). A lost member costs no restart.
3. All members succeeded: so has the job.
4. The number of wanted or present members changed: make a new plan, with joins batched.

Before a planned change (a leave, a join, a resize), workers that can save get time for it
(planned_changes.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from elasticjob_runtime.contract import MemberState, OutcomeState, OutcomeValue, PlanReason
from elasticjob_runtime.membership.actions import Action, AssignReplicas, ProbePeers, PublishOutcome, Wait
from elasticjob_runtime.membership.broken_worlds import BrokenWorlds, too_many_broken
from elasticjob_runtime.membership.causes import find_cause
from elasticjob_runtime.membership.eligibility import (
    by_number,
    compatible_members,
    describe,
    eligible_members,
    join_names,
    known_unreachable,
    members_to_probe,
    present_members,
    probed_recently,
    ranks_of,
)
from elasticjob_runtime.membership.failures import delay_or_end, describe_failure, may_follow_from_loss
from elasticjob_runtime.membership.in_place import (
    amend_plan,
    await_joiners,
    is_ready_to_join,
    members_to_continue,
    training_is_over,
)
from elasticjob_runtime.membership.planned_changes import members_saving, propose_stop, save_deadline
from elasticjob_runtime.membership.proposal import caused_at, propose_plan
from elasticjob_runtime.membership.ranks import by_location
from elasticjob_runtime.membership.replicas import assign_replicas, whole_replicas
from elasticjob_runtime.membership.silence import limits
from elasticjob_runtime.membership.sizes import group_size, largest
from elasticjob_runtime.membership.unready import publish_unready
from elasticjob_runtime.membership.view import Member, Plan, Stop, View

STORE_SECONDS = 30.0
"""How long replicas wait, before the first plan, for an agent that hosts a store. Longer: a job that cannot train ends
later. Shorter: one ends whose only store host was lost and is being started again."""

RESTORE_SECONDS = 1.0
"""How long a planner that cannot restore the plan that etcd has lost leaves it to the others, after these have given
the plan's leader time to do so. Longer: a group that cannot continue starts again later. Shorter: on a slow network,
processes restart that could have continued."""


def next_plan(view: View, now: float) -> Action | None:
    """What the planner does; None: nothing is due."""
    plan = view.store.plan
    if plan is None:
        return _await_restore(view, now) or _first_plan(view, now)
    if missing := _not_registered_again(view, plan, now):
        until = view.store.members[view.settings.me].seen_at + view.settings.reregister_grace
        return Wait(until=until, reason=f"etcd lost its data: waiting for {join_names(missing)} to register again")
    if suspects := _suspects(view, plan, now):
        who = join_names([member.name for member in suspects])
        timeout = limits(plan.value).answer
        return ProbePeers(members=suspects, timeout=timeout, reason=f"no heartbeat from {who}: probing")
    stop = view.stop
    if stop is None and not training_is_over(view, plan) and (broken := find_cause(view, plan)):
        return _repair(view, plan, broken, now)
    if _all_succeeded(view, plan) or training_is_over(view, plan):
        message = f"all {plan.value.world_size} worker processes exited with code 0"
        outcome = OutcomeValue(
            state=OutcomeState.SUCCEEDED, reason="WorkersSucceeded", message=message, round=plan.round
        )
        return PublishOutcome(outcome=outcome, expected_mod_revision=plan.mod_revision, reason=message)
    if stop is not None:
        return _after_saving(view, plan, stop, now)
    action = amend_plan(view, plan) or _assign(view) or _resize(view, plan, now) or _probe_again(view, now)
    return publish_unready(view, plan, now, action) if action is None or isinstance(action, Wait) else action


def _after_saving(view: View, plan: Plan, stop: Stop, now: float) -> Action:
    """Makes the plan of a planned change, when all members have saved. Nothing else shortens the wait: a worker may be
    writing."""
    until, why = save_deadline(view, stop), stop.value.message
    if now < until and (unsaved := members_saving(view, plan)):
        return Wait(until=until, reason=f"{why}; waiting for the workers of {join_names(unsaved)} to save")
    eligible = eligible_members(view)
    size = group_size(view.spec, len(eligible))
    if size is None:
        return _wait_for_members(view, now, f"{why}; {_too_few_members(view, len(eligible))}")
    return propose_plan(view, eligible, size, stop.value.reason, why)


def _first_plan(view: View, now: float) -> Action:
    eligible = eligible_members(view)
    size = group_size(view.spec, len(eligible))
    if size is None:
        return _wait_for_members(view, now, _too_few_members(view, len(eligible)))
    if size < largest(view.spec):
        if warming := [member for member in view.store.members.values() if _is_warming_up(view, member, now)]:
            until = max(member.seen_at for member in warming) + _warming_wait(view)
            return Wait(until=until, reason=f"waiting for {join_names([member.name for member in warming])} to warm up")
        due = _last_join_time(eligible) + view.settings.start_grace
        if now < due:
            return Wait(
                until=due,
                reason=f"{len(eligible)} of {largest(view.spec)} wanted members are present; waiting briefly for more",
            )
    if assigning := _assign(view):
        return assigning
    eligible = whole_replicas(view, eligible)
    size = group_size(view.spec, len(eligible))
    if size is None:
        return _wait_for_members(view, now, _too_few_members(view, len(eligible)))
    return _end_without_store(view, eligible, now) or propose_plan(view, eligible, size, PlanReason.START)


def _end_without_store(view: View, members: Sequence[Member], now: float) -> PublishOutcome | Wait | None:
    """Replicas have no store in which to meet, and would wait for ever: a member is ready only once its agent has tried
    to host one. None: there is one, or no replicas."""
    if not view.settings.replica_size or any(member.value.stores for member in members):
        return None
    until = max(member.seen_at for member in members) + STORE_SECONDS
    if now < until:
        return Wait(until=until, reason="waiting for an agent that hosts a store in which the replicas meet")
    message = (
        "no agent can host the store in which replicas meet (--replica-size, workers.replicaSize): the warnings of the "
        "agents have the reason, often that torch cannot be imported"
    )
    outcome = OutcomeValue(state=OutcomeState.FAILED, reason="NoStoreForReplicas", message=message)
    return PublishOutcome(outcome=outcome, expected_mod_revision=0, reason=message)


def _assign(view: View, *, short: bool = False) -> AssignReplicas | None:
    """Members are put together as they are near to each other. `short`: see assign_replicas."""
    if not view.settings.replica_size:
        return None
    present = sorted(present_members(view), key=lambda member: by_number(member.name))
    return assign_replicas(view, by_location(present, view.store.locations), ranks_of(view.store.plan), short=short)


def _await_restore(view: View, now: float) -> Action | None:
    """A job was running before the store lost its data: its leader restores the plan, if it can."""
    me = view.settings.me
    informed = [
        member
        for member in view.store.members.values()
        if member.value.round or (member.name == me and view.store.last_round)
    ]
    if not informed:
        return None
    until = min(member.seen_at for member in informed) + view.settings.reregister_grace
    if not can_restore(view):
        until = max(member.seen_at for member in informed) + view.settings.reregister_grace + RESTORE_SECONDS
    if now >= until:
        return None
    return Wait(
        until=until,
        reason=f"etcd lost the plan that {join_names([member.name for member in informed])} ran: it may be restored",
    )


def can_restore(view: View) -> bool:
    """Whether the plan that etcd has lost is that of this member's worker processes: it has a rank in it, and no other
    member has followed a later one."""
    plan = view.workers.plan
    if plan is None or plan.rank is None:
        return False
    rounds = [member.value.round for member in view.store.members.values()]
    return plan.round >= max([view.peer_round, view.store.last_round, *rounds])


def _not_registered_again(view: View, plan: Plan, now: float) -> list[str]:
    """Members of the plan that are missing because the store lost its data, not because they are gone."""
    me = view.me
    if me is None or me.value.round < plan.round or now >= me.seen_at + view.settings.reregister_grace:
        return []
    unknown = plan.value.size - len(ranks_of(plan))
    return [name for name in ranks_of(plan) if name not in view.store.members] + ["others"] * bool(unknown)


def _repair(view: View, plan: Plan, broken: tuple[PlanReason, str], now: float) -> Action:
    reason, why = broken
    broken_worlds = too_many_broken(view, plan, reason)
    if broken_worlds is not None:
        if without := _leave_out_suspect(view, plan, broken_worlds):
            return without
        view = dataclasses.replace(view, store=dataclasses.replace(view.store, failures=(broken_worlds.failure,)))
        reason, why = PlanReason.WORKER_FAILED, describe_failure(broken_worlds.failure)
    if reason is PlanReason.WORKER_FAILED:
        if may_follow_from_loss(view, plan) and (asking := _probe_present(view, plan, why, now, view.store.failed_at)):
            return asking
        if action := delay_or_end(view, plan, now):
            return action
    eligible = eligible_members(view)
    if broken_worlds is None:
        eligible = members_to_continue(view, plan, eligible)
    if saved_first := propose_stop(view, plan, reason, why, caused_at(view, plan, reason, eligible)):
        return saved_first
    size = group_size(view.spec, len(eligible))
    if size is None:
        return _wait_for_members(view, now, f"{why}; {_too_few_members(view, len(eligible))}")
    if reason is PlanReason.MEMBER_LOST and (asking := _probe_present(view, plan, why, now)):
        return asking
    suspects = broken_worlds.suspects if broken_worlds else ()
    return propose_plan(view, eligible, size, reason, why, restart=broken_worlds is not None, suspects=suspects)


def _leave_out_suspect(view: View, plan: Plan, broken: BrokenWorlds) -> Action | None:
    """None: no member is named again, or the others are too few without it."""
    member = broken.again(view, plan)
    if member is None:
        return None
    others = [other for other in eligible_members(view) if other.name != member.name]
    others = members_to_continue(view, plan, whole_replicas(view, others))
    size = group_size(view.spec, len(others))
    if size is None:
        return None
    why = f"{member.name} is left out: {broken.failure.message}, and so it was before the last restart"
    left_out = member.value.incarnation
    return propose_plan(view, others, size, PlanReason.MEMBER_LOST, why, suspects=broken.suspects, left_out=left_out)


def _probe_present(view: View, plan: Plan, why: str, now: float, since: float = 0.0) -> Action | None:
    """Only answers to probes sent after `since` count: a member that answered before a failure may have caused it."""
    if asked := members_to_probe(view, plan, now, since):
        timeout = limits(plan.value).answer
        return ProbePeers(members=asked, timeout=timeout, reason=f"{why}; probing {len(asked)} members")
    return None


def _wait_for_members(view: View, now: float, why: str) -> Action:
    """There are too few members to train. One that missed a probe may be back."""
    return _assign(view, short=True) or _probe_again(view, now, why) or Wait(reason=why)


def _resize(view: View, plan: Plan, now: float) -> Action | None:
    present = eligible_members(view)
    eligible = whole_replicas(view, [member for member in present if is_ready_to_join(plan, member)])
    return _resize_to(view, plan, eligible, now) or await_joiners(view, plan, present)


def _resize_to(view: View, plan: Plan, eligible: Sequence[Member], now: float) -> Action | None:
    size = group_size(view.spec, len(eligible))
    if (
        size is None
        or size == plan.value.size
        or any(member.value.state is MemberState.SUCCEEDED for member in eligible)
    ):
        return None
    if size < plan.value.size:
        return _plan_change(view, plan, eligible, size, PlanReason.RESIZED, f"resized to {size} members")
    new = eligible[plan.value.size :]
    if size < largest(view.spec) and (wait := _more_may_join(view, eligible, new, now)):
        return wait
    if silent := tuple(member for member in new if not probed_recently(view, member, now)):
        return ProbePeers(members=silent, reason=f"probing {len(silent)} joining members")
    who = join_names([member.name for member in eligible[:size] if member in new])
    return _plan_change(view, plan, eligible, size, PlanReason.MEMBER_JOINED, f"{who} joined")


def _plan_change(view: View, plan: Plan, eligible: Sequence[Member], size: int, reason: PlanReason, why: str) -> Action:
    return propose_stop(view, plan, reason, why, caused_at(view, plan, reason, eligible)) or propose_plan(
        view, eligible, size, reason, why
    )


def _more_may_join(view: View, eligible: Sequence[Member], new: Sequence[Member], now: float) -> Action | None:
    """Batches joins, counted from when each member is ready, because every plan restarts all workers. Members that
    still import are waited for only briefly."""
    settings, first = view.settings, min(member.ready_at for member in new)
    warming = [member for member in compatible_members(view) if _is_warming_up(view, member, now)]
    larger = (group_size(view.spec, len(eligible) + len(warming)) or 0) > (group_size(view.spec, len(eligible)) or 0)
    joined = f"{join_names([member.name for member in new])} joined"
    if larger and now < first + settings.warming_delay:
        reason = f"{joined}; waiting briefly for {join_names([member.name for member in warming])} to warm up"
        return Wait(until=first + settings.warming_delay, reason=reason)
    due = max(member.ready_at for member in new) + settings.join_delay
    return Wait(until=due, reason=f"{joined}; waiting briefly for further joins") if now < due else None


def _probe_again(view: View, now: float, why: str = "") -> Action | None:
    """Probes a member that missed a probe again while its lease lives, because it may be back.

    The reason stays `why`, or the usual state, unless the plan misses that member.
    """
    suspected = {suspicion.value.suspect for suspicion in view.store.suspicions} - {view.settings.me}
    members = view.store.members.values()
    silent = [
        member
        for member in members
        if known_unreachable(view, member) or (member.name in suspected and member.name in view.probes)
    ]
    if not silent:
        return None
    missed = [member.name for member in silent if member.name in ranks_of(view.store.plan)]
    reason = why or ("" if missed else describe(view))
    if due := tuple(member for member in silent if not probed_recently(view, member, now)):
        return ProbePeers(members=due, reason=reason or f"probing {join_names([member.name for member in due])} again")
    next_time = min(view.probes[member.name].at for member in silent) + view.settings.probe_age
    return Wait(until=next_time, reason=reason or f"no heartbeat from {join_names(missed)}; probing again soon")


def _suspects(view: View, plan: Plan, now: float) -> tuple[Member, ...]:
    """Members of the plan that a neighbour suspects and that have no recent answer to a probe sent after that."""
    suspected: dict[str, float] = {}
    for suspicion in view.store.suspicions:
        suspected[suspicion.value.suspect] = max(suspicion.seen_at, suspected.get(suspicion.value.suspect, 0.0))
    return tuple(
        member
        for member in eligible_members(view)
        if member.name in suspected
        and member.name in ranks_of(plan)
        and not probed_recently(view, member, now, suspected[member.name])
    )


def _all_succeeded(view: View, plan: Plan) -> bool:
    members = view.store.members
    return all(
        name in members
        and members[name].value.state is MemberState.SUCCEEDED
        and members[name].value.round == plan.round
        for name in ranks_of(plan)
    )


def _is_warming_up(view: View, member: Member, now: float) -> bool:
    imports = member.value.state is MemberState.WARMING and not member.value.failed
    return imports and now < member.seen_at + _warming_wait(view)


def _warming_wait(view: View) -> float:
    """Seconds that ready members wait for one that still imports: long before the very first plan, when nothing trains
    yet and a second plan would repeat the first steps; short in a running job."""
    began = view.store.last_round or any(member.value.round for member in view.store.members.values())
    return view.settings.warming_delay if began and view.store.plan is None else view.settings.warm_timeout


def _last_join_time(members: Sequence[Member]) -> float:
    return max((member.seen_at for member in members), default=0.0)


def _too_few_members(view: View, have: int) -> str:
    return f"waiting for members: {have} present, at least {view.spec.min} needed"
