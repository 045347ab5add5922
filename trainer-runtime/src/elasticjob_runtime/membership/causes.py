"""Why the current plan cannot continue. Pure."""

from __future__ import annotations

from elasticjob_runtime.contract import MemberState, PlanReason, first_failure
from elasticjob_runtime.membership.eligibility import join_names, known_unreachable, ranks_of
from elasticjob_runtime.membership.failures import describe_failure
from elasticjob_runtime.membership.in_place import finished_before
from elasticjob_runtime.membership.replicas import follows_in_replica, is_cut
from elasticjob_runtime.membership.view import Plan, View

Cause = tuple[PlanReason, str]
"""The reason of the next plan, and a clause for users."""


def find_cause(view: View, plan: Plan) -> Cause | None:
    """None: nothing keeps the plan from continuing. Causes that cost no restart come first: a member that lost a peer
    also sees its own workers fail. Workers that continue in place do not fail because of others."""
    return (
        _lost_or_left(view, plan)
        or (_failed(view, plan) if plan.value.in_place else None)
        or _ahead(view, plan)
        or _failed(view, plan)
        or _finished(view, plan)
    )


def _lost_or_left(view: View, plan: Plan) -> Cause | None:
    members = view.store.members
    lost: list[str] = []
    left: list[str] = []
    for name, rank in ranks_of(plan).items():
        member = members.get(name)
        if member is None or member.value.incarnation != rank.incarnation or known_unreachable(view, member):
            lost.append(name)
        elif is_cut(view, member):
            lost.append(member.value.cut_from)
        elif member.value.state is MemberState.LEAVING or name in view.spec.draining:
            left.append(name)
    if unknown := plan.value.size - len(ranks_of(plan)):
        lost.append("1 member whose rank etcd lost" if unknown == 1 else f"{unknown} members whose ranks etcd lost")
    if lost:
        return PlanReason.MEMBER_LOST, f"lost {join_names(lost)}"
    return (PlanReason.MEMBER_LEFT, f"{join_names(left)} left") if left else None


def _ahead(view: View, plan: Plan) -> Cause | None:
    """Members that have requested a later plan."""
    ahead = [name for name in ranks_of(plan) if view.store.members[name].value.round > plan.round]
    if not ahead:
        return None
    why = "their workers were stopped, or etcd was restored from a backup"
    if plan.value.in_place:
        why = "their workers could not form its world or were stopped, or etcd was restored from a backup"
    return PlanReason.START, f"{join_names(ahead)} cannot run the plan: {why}"


def _failed(view: View, plan: Plan) -> Cause | None:
    """Also of members that joined and have not said yet how they failed."""
    if not view.store.failures:
        there = [(name, view.store.members[name].value) for name in ranks_of(plan) if name in view.store.members]
        failed = [name for name, value in there if value.state is MemberState.WARMING and value.failed]
        return (PlanReason.MEMBER_LOST, f"{join_names(failed)} failed as it joined") if failed else None
    failures = [failure for failure in view.store.failures if not follows_in_replica(view, failure)]
    if not failures:
        names = join_names([failure.member for failure in view.store.failures])
        return PlanReason.START, f"{names} lost the other members of their replicas"
    failure = first_failure(failures)
    if failure.joining:
        return PlanReason.MEMBER_LOST, describe_failure(failure)
    return PlanReason.WORKER_FAILED, describe_failure(failure)


def _finished(view: View, plan: Plan) -> Cause | None:
    finished = finished_before(view, plan)
    return (PlanReason.MEMBER_LEFT, f"{join_names(finished)} finished before plan {plan.round}") if finished else None
