"""What an agent does next: `decide(view, now) -> Action`, pure.

The rules stand in order of precedence; the first that has something to do wins. Each compares what *is* with what the
store says, so any number of calls with the same view give the same action, and an agent that was killed in between goes
on from wherever it left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from elasticjob_runtime.contract import (
    CONTRACT_VERSION,
    ExitCode,
    FailureValue,
    MemberState,
    MemberValue,
    OutcomeState,
    SuspicionValue,
)
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
    stop,
)
from elasticjob_runtime.membership.eligibility import doing
from elasticjob_runtime.membership.fencing import fence, fence_due, superseded
from elasticjob_runtime.membership.planned_changes import is_planned, make_way
from elasticjob_runtime.membership.planner import next_plan
from elasticjob_runtime.membership.succession import before_me, takeover_delay, trouble_since, wanted_role
from elasticjob_runtime.membership.view import (
    ALIVE,
    Member,
    Plan,
    Role,
    View,
    WorkersState,
)


def decide(view: View, now: float) -> Action:
    """The next action of this agent."""
    action = _first_of_the_rules(view, now)
    due = fence_due(view, now)
    if isinstance(action, Wait) and due is not None and (action.until is None or due < action.until):
        return dataclasses.replace(action, until=due)
    return action


def _first_of_the_rules(view: View, now: float) -> Action:
    rules: tuple[Callable[[View, float], Action | None], ...] = (
        _end, _leave, _yield_name, fence, _register, _incompatible, _warm_up, make_way,
        _follow, _report, _listen, _watch, _restore, _lead,
    )  # fmt: skip
    for rule in rules:
        if (action := rule(view, now)) is not None:
            return action
    return Wait(reason=doing(view))


def _end(view: View, _now: float) -> Action | None:
    """Only the outcome ends a job for everybody."""
    outcome = view.store.outcome
    if outcome is None:
        return None
    if view.workers.state in ALIVE:
        why = f"the job {outcome.state.value}: {outcome.message}"
        return Wait(reason=f"stopping the workers: {why}") if view.workers.saving else stop(view, why)
    code = ExitCode.SUCCEEDED if outcome.state is OutcomeState.SUCCEEDED else ExitCode.WORKERS_FAILED
    late = (
        ""
        if view.store.registered or view.workers.round
        else " before this agent came; take another --rdzv-id to run it again"
    )
    return Exit(code=code, reason=f"the job {outcome.state.value}{late}: {outcome.message}")


def _leave(view: View, now: float) -> Action | None:
    """Tell the others first, so that they go on at once; then give the workers time to save."""
    since = view.leaving_since
    if since is None:
        return None
    me = view.me
    told = not view.store.registered or (me is not None and me.value.state is MemberState.LEAVING)
    give_up = since + view.settings.leave_timeout
    if not told and now < give_up:
        return PublishState(
            state=MemberState.LEAVING, round=view.workers.round, until=give_up, reason="leaving the job"
        )
    if view.workers.state is WorkersState.RUNNING:
        return StopWorkers(grace=view.settings.shutdown_grace, reason="leaving: workers get time to save")
    if view.workers.state is WorkersState.STOPPING:
        return Wait(reason="leaving: waiting for the workers to save")
    return Exit(code=view.leaving_code, reason="left the job")


def _yield_name(view: View, _now: float) -> Action | None:
    """Another agent has this member's name: two would write the same key and the same checkpoint."""
    if not view.store.replaced_by:
        return None
    reason = f"another agent registered as {view.settings.me} (incarnation {view.store.replaced_by})"
    return stop(view, reason) if view.workers.state in ALIVE else Exit(code=ExitCode.RESTARTABLE, reason=reason)


def _listen(view: View, _now: float) -> Action | None:
    """Say which neighbour is not heard any more, and take it back when it is."""
    plan = view.store.plan
    if plan is None or plan.rank is None or not view.runs_plan:
        return None
    me = view.settings.me
    said = {one.value.suspect: one.value for one in view.store.suspicions if one.value.by == me}
    if back := sorted(name for name in said if name not in view.silent):
        return PublishSuspicion(suspicion=said[back[0]], retract=True, reason=f"{back[0]} is heard again")
    if lost := sorted(view.silent - said.keys()):
        suspicion = SuspicionValue(suspect=lost[0], by=me, round=plan.round)
        return PublishSuspicion(suspicion=suspicion, reason=f"{lost[0]} is not heard any more")
    return None


def _register(view: View, _now: float) -> Action | None:
    if view.store.registered:
        return None
    again = view.workers.round > 0
    state = MemberState.READY if view.warm else MemberState.WARMING
    if view.workers.state is WorkersState.SUCCEEDED:
        state = MemberState.SUCCEEDED
    reason = "the store lost this member: registering again" if again else "registering"
    return Register(state=state, round=view.workers.round, stores=view.stores, reason=reason)


def _warm_up(view: View, _now: float) -> Action | None:
    """Ready to start workers: say so; and whether there are stores for them, which their host process may have taken
    with it."""
    me = view.me
    if me is None or view.store.role is None:  # nothing is watched yet that would show what is said
        return None
    if me.value.state is not MemberState.WARMING or not view.warm:
        if me.value.stores == view.stores or me.value.state is MemberState.LEAVING:
            return None
        reason = "the stores of coming rounds listen" if view.stores else "the stores of coming rounds are gone"
        return PublishState(state=me.value.state, round=me.value.round, stores=view.stores, reason=reason)
    return PublishState(
        state=MemberState.READY, round=view.workers.round, stores=view.stores, reason="ready to start workers"
    )


def _incompatible(view: View, _now: float) -> Action | None:
    """A member of another contract version, or that starts another number of workers, cannot train with the rest."""
    if view.workers.round or view.me is None:
        return None
    plan, nproc = view.store.plan, view.settings.nproc
    norm = _norm(view)
    version = norm.contract if norm else CONTRACT_VERSION
    theirs = plan.value.nproc if plan else norm.nproc if norm else nproc
    if version != CONTRACT_VERSION:
        return _misfitting(
            f"this agent speaks version {CONTRACT_VERSION} of the contract, the others version {version}: "
                           "use one version of elasticjob-runtime in all images of a job")  # fmt: skip
    if theirs != nproc:
        return _misfitting(f"this agent starts {nproc} workers, the job's other members start {theirs} each: "
                           "give all the same --nproc-per-node")  # fmt: skip
    return None


def _norm(view: View) -> MemberValue | None:
    """The member to which all others have to fit: who leads the plan, or was there first. Any other may be a misfit
    itself."""
    plan = view.store.plan
    if plan is not None:
        leader = view.store.members.get(plan.value.leader)
        return leader.value if leader is not None and leader.name != view.settings.me else None
    first_member = view.store.first_member or _earliest_other(view)
    return first_member if first_member is not None and first_member.state is not MemberState.LEAVING else None


def _earliest_other(view: View) -> MemberValue | None:
    """The first of all members, where this one sees them all and is not the first itself."""
    if view.store.role is not Role.PLANNER or not view.store.members:
        return None
    first = min(view.store.members.values(), key=lambda member: member.create_revision)
    return first.value if first.name != view.settings.me else None


def _misfitting(reason: str) -> Action:
    return Exit(code=ExitCode.CONFIG, reason=reason)


def _follow(view: View, _now: float) -> Action | None:
    """Run what the plan says: its round, or nothing."""
    plan, workers = view.store.plan, view.workers
    if plan is None or (view.runs_plan and (view.stop is not None or workers.state is not WorkersState.NONE)):
        return None
    if view.runs_plan and superseded(view):
        return Wait(reason=f"plan {view.peer_round} is not to be seen yet")
    why = f"plan {plan.round}: {plan.value.message or plan.value.reason.value}"
    if workers.state in ALIVE:
        return _stop_for(view, plan, why)
    if plan.rank is None:
        return None
    if plan.round > workers.round:
        return StartWorkers(plan=plan, reason=why)
    after = max(workers.round, view.store.last_round, plan.round + 1)
    if (me := view.me) is not None and me.value.round <= plan.round:
        set_back = f"the store was set back: plan {plan.round} cannot be run after round {workers.round}"
        why = set_back if plan.round < workers.round else f"the workers of plan {plan.round} were stopped"
        reason = f"{why}; asking for a later plan"
        return PublishState(state=MemberState.READY, round=after, stores=view.stores, reason=reason)
    return None


def _stop_for(view: View, plan: Plan, why: str) -> Action:
    """At once; but who did not see the planned change coming (planned_changes.py), and can save, may."""
    workers = view.workers
    if workers.state is WorkersState.RUNNING and workers.saves and is_planned(plan.value, after=workers.round):
        return StopWorkers(grace=view.settings.shutdown_grace, reason=f"{why}; the workers get time to save")
    return stop(view, why)


def _report(view: View, _now: float) -> Action | None:
    """Say how this round's workers ended, once."""
    workers = view.workers
    if not view.runs_plan:
        return None
    if workers.failure is not None and view.stop is None and not _is_reported(view, workers.failure):
        return PublishFailure(failure=workers.failure, reason=f"a worker failed: {workers.failure.message}")
    if workers.state is WorkersState.SUCCEEDED and (me := view.me) is not None:
        said = me.value.state is MemberState.SUCCEEDED and me.value.round == workers.round
        if not said:
            return PublishState(
                state=MemberState.SUCCEEDED,
                round=workers.round,
                stores=view.stores,
                reason="all local workers exited with 0",
            )
    return None


def _is_reported(view: View, failure: FailureValue) -> bool:
    """Who sees all failures believes what it sees: a store that came back empty has lost them."""
    if view.store.role is Role.PLANNER:
        return any(other.member == failure.member for other in view.store.failures)
    return view.reported_failure >= failure.round


def _watch(view: View, now: float) -> Action | None:
    """Watch as much as this member's place in the line asks for, no more."""
    role, predecessor, why = wanted_role(view, now)
    if view.store.role is role and (role is Role.PLANNER or view.store.predecessor == predecessor):
        return None
    return Subscribe(role=role, predecessor=predecessor, reason=why)


def _restore(view: View, now: float) -> Action | None:
    """The store came back empty while the job went on: the member that leads puts its plan back; without it, a new one
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
        return RestorePlan(plan=plan, reason=f"the store lost plan {plan.round}: writing it again")
    until = me.seen_at + view.settings.reregister_grace
    if now < until:
        return Wait(until=until, reason=f"the store lost plan {plan.round}: {plan.value.leader} writes it again")
    return None


def _lead(view: View, now: float) -> Action | None:
    """Plan, where this member is the first in line that can be reached."""
    if view.store.role is not Role.PLANNER:
        since = trouble_since(view)
        return None if since is None else Wait(until=since + takeover_delay(view), reason="waiting for a new plan")
    before = before_me(view)
    if not before:
        return next_plan(view, now)
    unasked = tuple(member for member in before if not _fresh(view, member, now))
    if trouble_since(view) is not None and unasked:
        return ProbePeers(
            members=unasked, reason=f"asking {len(unasked)} members before me in line whether they are there"
        )
    return Wait(
        until=now + view.settings.probe_age if trouble_since(view) is not None else None,
        reason=f"{before[0].name} is before me in line",
    )


def _fresh(view: View, member: Member, now: float) -> bool:
    probe = view.probes.get(member.name)
    same = probe is not None and probe.incarnation == member.value.incarnation
    return same and probe is not None and now - probe.at <= view.settings.probe_age
