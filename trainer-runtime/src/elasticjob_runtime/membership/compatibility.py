"""Whether this member can train with the rest of the group."""

from __future__ import annotations

from elasticjob_runtime.contract import ExitCode, MemberState, MemberValue
from elasticjob_runtime.membership.actions import Action, Exit
from elasticjob_runtime.membership.view import Role, View


def exit_if_incompatible(view: View, _now: float) -> Action | None:
    """A member with another contract version, or another number of worker processes, cannot train with the rest."""
    if view.workers.round or view.me is None:
        return None
    plan, nproc = view.store.plan, view.settings.nproc
    reference = _reference_member(view)
    own_version = view.me.value.contract
    version = reference.contract if reference else own_version
    their_nproc = plan.value.nproc if plan else reference.nproc if reference else nproc
    if version != own_version:
        reason = (
            f"this agent speaks contract version {own_version}, the other members version {version}: "
            "use the same version of elasticjob-runtime in all images of a job"
        )
        return Exit(code=ExitCode.CONFIG, reason=reason)
    if their_nproc != nproc:
        reason = (
            f"this agent starts {nproc} worker processes, the other members {their_nproc} each: "
            "use the same --nproc-per-node for all members"
        )
        return Exit(code=ExitCode.CONFIG, reason=reason)
    replica_size = view.settings.replica_size
    theirs = plan.value.replica_size if plan else reference.replica_size if reference else replica_size
    if theirs != replica_size:
        reason = (
            f"this agent has --replica-size={replica_size}, the other members {theirs}: use the same for all members"
        )
        return Exit(code=ExitCode.CONFIG, reason=reason)
    return None


def _reference_member(view: View) -> MemberValue | None:
    """The member that all others must be compatible with: the plan's leader, or the first member. Any other may be
    incompatible itself."""
    plan = view.store.plan
    if plan is not None:
        leader = view.store.members.get(plan.value.leader)
        return leader.value if leader is not None and leader.name != view.settings.me else None
    first_member = view.store.first_member or _first_other_member(view)
    return first_member if first_member is not None and first_member.state is not MemberState.LEAVING else None


def _first_other_member(view: View) -> MemberValue | None:
    """The member that registered first; None if that is this one, or if this one does not see all members."""
    if view.store.role is not Role.PLANNER or not view.store.members:
        return None
    first = min(view.store.members.values(), key=lambda member: member.create_revision)
    return first.value if first.name != view.settings.me else None
