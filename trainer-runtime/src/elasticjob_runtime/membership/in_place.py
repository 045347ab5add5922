"""Continuing in place: when worker processes follow a new plan without a restart, and who is ready to join them. Pure.

A script with an ElasticSession says so when it starts. Once all worker processes of a plan have, the planner marks the
plan (`in_place`), and from then on:

1. Who starts worker processes starts them in worlds of their own (`alone`), also for a member that is not in a plan
   yet: it is ready to join when they wait for one.
2. A new plan moves the processes that run, instead of replacing them.
3. A member whose worker process failed is left out of the next plan if the others are enough, so that they continue at
   once; it joins again when its replacement is ready. The other processes of that member wait for that.
4. A plan whose members have all failed is not continued: their workers start as usual.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_runtime.contract import NO_REPLICA, MemberState, PlanReason
from elasticjob_runtime.membership.actions import (
    Action,
    AmendPlan,
    MoveWorkers,
    PublishState,
    StartWorkers,
    Wait,
    stop_at_once,
)
from elasticjob_runtime.membership.eligibility import join_names, ranks_of
from elasticjob_runtime.membership.planned_changes import is_planned
from elasticjob_runtime.membership.replicas import can_start, whole_replicas, world_here
from elasticjob_runtime.membership.sizes import group_size
from elasticjob_runtime.membership.view import ALIVE, Member, Plan, View, WorkersState

STEP_GRACE = 0.5
"""Seconds that a step may take to end at a planned change. Longer: fewer steps are interrupted and repeated. Shorter: a
join waits less for a slow step."""

REJECTED_GRACE = 1.0
"""Seconds for the planner to see why a world could not be formed, usually the loss of a process, before another plan is
requested."""


# -- a member's part


def move_workers(view: View, plan: Plan, reason: str) -> MoveWorkers | None:
    """Follows a new plan without a restart; None: that is not possible. A plan that came back with a backup of etcd is
    not new: its worker store still holds what was agreed there."""
    workers = view.workers
    if not plan.value.in_place or workers.state is not WorkersState.RUNNING or not workers.movable:
        return None
    if plan.round <= workers.round:
        return None
    planned = is_planned(plan.value, after=workers.round) and not workers.incomplete
    return MoveWorkers(plan=plan, step_grace=STEP_GRACE if planned else 0.0, reason=reason)


def enter_late(view: View) -> MoveWorkers | None:
    """Enters the plan whose workers wait outside of it: this member's rank arrived after the plan, because etcd had
    lost its data in between."""
    plan, workers = view.store.plan, view.workers
    if plan is None or plan.rank is None or not view.runs_plan or workers.state is not WorkersState.RUNNING:
        return None
    if workers.plan is None or workers.plan.rank is not None:
        return None
    return MoveWorkers(plan=plan, reason=f"plan {plan.round} includes this member after all")


def warm_up_workers(view: View) -> StartWorkers | MoveWorkers | None:
    """Starts the workers of a member that may join the plan's, or those of them that have failed, so that the others
    need not wait for them."""
    plan, workers, me = view.store.plan, view.workers, view.me
    if plan is None or plan.rank is not None or not plan.value.in_place or not view.warm:
        return None
    if view.settings.me in view.spec.draining or view.leaving_since is not None or me is None:
        return None
    if me.value.state is MemberState.WARMING or plan.round < workers.round:  # a backup of etcd has an older plan
        return None
    reason = f"starting workers that can join plan {plan.round}"
    if workers.state is WorkersState.RUNNING and workers.incomplete and workers.plan == plan:
        return MoveWorkers(plan=plan, reason=reason)
    if workers.state in ALIVE or not can_start(view):
        return None
    return StartWorkers(plan=plan, alone=True, reason=reason)


def leave_world_of_replica(view: View, now: float) -> Action | None:
    """The replica has another world, or is no more: worker processes in the earlier one have lost the others. Those
    that a planned change leaves out take part in the step that the others are in."""
    plan, workers = view.store.plan, view.workers
    if plan is None or plan.replica is None or workers.state not in ALIVE:
        return None
    if not 0 < world_here(view) < plan.replica.world:
        return None
    if plan.rank is None and is_planned(plan.value, after=workers.trained_round) and not workers.waiting:
        if not view.runs_plan and move_workers(view, plan, "") is not None:
            return None  # they are told of it first
        if view.runs_plan and now < (until := workers.began_at + STEP_GRACE):
            return Wait(until=until, reason="waiting for the end of the step before this replica starts again")
    if plan.replica.index == NO_REPLICA:
        return stop_at_once(view, "a member of this replica is gone")
    return stop_at_once(view, f"replica {plan.replica.index} starts again")


def report_in_place(view: View, _now: float) -> Action | None:
    """Publishes that the workers can continue under another plan, and if they no longer can: for every plan that is not
    marked yet, because they may have been restarted for it, and for every plan that this member may join."""
    me, plan, workers = view.me, view.store.plan, view.workers
    if me is None or plan is None or not view.runs_plan or view.leaving_since is not None:
        return None
    if plan.rank is not None and plan.value.in_place:
        return None
    published, able = me.value.in_place, workers.round if workers.in_place else 0
    if published == able or (able == 0 and published != workers.round):
        return None
    which = "can" if able else "can no longer"
    return PublishState(
        state=me.value.state, round=me.value.round, stores=view.stores, in_place=able,
        reason=f"the worker processes {which} continue under another plan",
    )  # fmt: skip


def request_plan(view: View, now: float) -> Action | None:
    """Publishes a later round, for which the planner makes another plan: this one's world could not be formed."""
    me, plan, due = view.me, view.store.plan, request_plan_due(view)
    if me is None or plan is None or due is None or now < due:
        return None
    reason = f"the world of plan {plan.round} could not be formed; requesting another plan"
    return PublishState(
        state=me.value.state, round=plan.round + 1, stores=view.stores, broken=view.workers.rejected_why, reason=reason
    )


def request_plan_due(view: View) -> float | None:
    """When to request another plan; None: this one's world is formed, or may still be."""
    me, plan, workers = view.me, view.store.plan, view.workers
    if me is None or plan is None or plan.rank is None or not view.runs_plan or workers.rejected_at is None:
        return None
    return None if me.value.round > plan.round else workers.rejected_at + REJECTED_GRACE


def in_place_due(view: View, now: float) -> float | None:
    """When to decide again even if nothing changes before."""
    due = request_plan_due(view)
    return due if due is not None and due > now else None


# -- the planner's part


def is_ready_to_join(plan: Plan, member: Member) -> bool:
    """Whether the plan's workers need not wait for the member's, however long these take to start."""
    rank = ranks_of(plan).get(member.name)
    if not plan.value.in_place or (rank is not None and rank.incarnation == member.value.incarnation):
        return True
    return member.value.in_place >= plan.round


def await_joiners(view: View, plan: Plan, eligible: Sequence[Member]) -> Wait | None:
    """None: no member that would change the size of the group is still starting its workers."""
    starting = [member.name for member in eligible if not is_ready_to_join(plan, member)]
    ready = len(eligible) - len(starting)
    if not starting or group_size(view.spec, len(eligible)) == group_size(view.spec, ready):
        return None
    return Wait(reason=f"training without {join_names(starting)} until their worker processes are ready")


def finished_before(view: View, plan: Plan) -> list[str]:
    """Members of the plan whose worker processes ended with code 0 before they entered its world: it cannot be
    formed."""
    if not plan.value.in_place:
        return []
    found = []
    for name, rank in ranks_of(plan).items():
        member = view.store.members.get(name)
        if member is not None and member.value.incarnation == rank.incarnation and is_finished(member):
            found += [name] if member.value.round < plan.round else []
    return found


def is_finished(member: Member) -> bool:
    return member.value.state is MemberState.SUCCEEDED


def training_is_over(view: View, plan: Plan) -> bool:
    """Whether all who took part in the plan before have finished, and only members that were to join them remain."""
    finished = finished_before(view, plan)
    took_part = [name for name, rank in ranks_of(plan).items() if rank.joined < plan.round]
    return bool(finished and took_part) and all(name in finished for name in took_part)


def members_to_continue(view: View, plan: Plan, eligible: Sequence[Member]) -> list[Member]:
    """Of the eligible members those with which a broken plan's workers continue soonest: without members that failed or
    are not ready, if the others are enough."""
    if not plan.value.in_place:
        return list(eligible)
    failed = {failure.member for failure in view.store.failures}
    ready = [member for member in eligible if is_ready_to_join(plan, member)]
    whole = [member for member in ready if member.name not in failed and not is_finished(member)]
    for candidates in (whole, ready):
        candidates = whole_replicas(view, candidates)  # noqa: PLW2901 of the members, those in whole replicas
        if group_size(view.spec, len(candidates)) is not None:
            return candidates
    return list(eligible)


def continues(view: View, reason: PlanReason, members: Sequence[Member]) -> bool:
    """Whether the worker processes of the current plan continue under a new one with these members. Not with members
    that have finished, which are included only if the others are too few: all take the last steps again. Those of
    replicas, which are in worlds of their own from their start, always do."""
    plan = view.store.plan
    if any(is_finished(member) for member in members):
        return False
    if view.settings.replica_size:
        return True
    if plan is None or not plan.value.in_place or not members[0].value.stores:
        return False
    failed = {failure.member for failure in view.store.failures} if reason is PlanReason.WORKER_FAILED else set()
    ranks = ranks_of(plan)
    return any(
        member.name in ranks
        and ranks[member.name].incarnation == member.value.incarnation
        and (member.name not in failed or plan.value.nproc > 1)
        for member in members
    )


def amend_plan(view: View, plan: Plan) -> AmendPlan | None:
    """Marks the plan once all its workers can continue in place."""
    if plan.value.in_place or not plan.value.agent_store:
        return None
    ranks, members = ranks_of(plan), view.store.members
    if len(ranks) < plan.value.size:
        return None
    for name, rank in ranks.items():
        member = members.get(name)
        if member is None or member.value.incarnation != rank.incarnation or member.value.in_place != plan.round:
            return None
        if member.value.state is not MemberState.READY:
            return None
    return AmendPlan(plan=plan, reason=f"all worker processes of plan {plan.round} can continue under another plan")
