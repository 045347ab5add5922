"""What an agent does next: `decide(view, now) -> Action`, pure.

The rules stand in order of precedence; the first that has something to do wins. Each compares what *is* with what the store says, so any
number of calls with the same view give the same action, and an agent that was killed in between goes on from wherever it left.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticjob_runtime.contract import CONTRACT_VERSION, ExitCode, FailureValue, MemberState, MemberValue, OutcomeState, SuspicionValue
from elasticjob_runtime.membership import crash_loop
from elasticjob_runtime.membership.model import (
    Action,
    Exit,
    Member,
    Plan,
    ProbePeers,
    PublishFailure,
    PublishState,
    PublishSuspicion,
    Register,
    RestorePlan,
    Role,
    StartWorkers,
    StopWorkers,
    Subscribe,
    View,
    Wait,
    WorkersState,
)
from elasticjob_runtime.membership.planner import known_unreachable, next_plan

_ALIVE = (WorkersState.RUNNING, WorkersState.STOPPING)


def decide(view: View, now: float) -> Action:
    """The next action of this agent."""
    rules: tuple[Callable[[View, float], Action | None], ...] = (
        _end, _leave, _give_way, _fence, _register, _misfit, _warm_up, _follow, _report, _listen, _watch, _restore, _lead,
    )  # fmt: skip
    for rule in rules:
        if (action := rule(view, now)) is not None:
            return action
    return Wait(reason=_doing(view))


def _end(view: View, _now: float) -> Action | None:
    """Only the outcome ends a job for everybody."""
    outcome = view.store.outcome
    if outcome is None:
        return None
    if view.workers.state in _ALIVE:
        return _stop(view, f"the job {outcome.state.value}: {outcome.message}")
    code = ExitCode.SUCCEEDED if outcome.state is OutcomeState.SUCCEEDED else ExitCode.WORKERS_FAILED
    return Exit(code=code, reason=f"the job {outcome.state.value}: {outcome.message}")


def _leave(view: View, now: float) -> Action | None:
    """Tell the others first, so that they go on at once; then give the workers time to save."""
    since = view.leaving_since
    if since is None:
        return None
    me = view.me
    told = not view.store.registered or (me is not None and me.value.state is MemberState.LEAVING)
    give_up = since + view.settings.leave_timeout
    if not told and now < give_up:
        return PublishState(state=MemberState.LEAVING, epoch=view.workers.epoch, until=give_up, reason="leaving the job")
    if view.workers.state is WorkersState.RUNNING:
        return StopWorkers(grace=view.settings.shutdown_grace, reason="leaving: workers get time to save")
    if view.workers.state is WorkersState.STOPPING:
        return Wait(reason="leaving: waiting for the workers to save")
    return Exit(code=view.leaving_code, reason="left the job")


def _give_way(view: View, _now: float) -> Action | None:
    """Another agent has this member's name: two would write the same key and the same checkpoint."""
    if not view.store.replaced_by:
        return None
    reason = f"another agent registered as {view.settings.me} (incarnation {view.store.replaced_by})"
    return _stop(view, reason) if view.workers.state in _ALIVE else Exit(code=ExitCode.RESTARTABLE, reason=reason)


def _fence(view: View, now: float) -> Action | None:
    """Cut off from the store and from all neighbours: the others have gone on without this member, or will. Two must not train alone."""
    plan, expires = view.store.plan, view.lease_expires_at
    neighbours = plan.rank.neighbours if plan and plan.rank and view.runs_plan else ()
    if expires is None or now < expires or not neighbours or any(one.name not in view.silent for one in neighbours):
        return None
    reason = "cut off: neither the store nor a neighbour can be reached, and the lease has run out"
    return _stop(view, reason) if view.workers.state in _ALIVE else Exit(code=ExitCode.RESTARTABLE, reason=reason)


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
        suspicion = SuspicionValue(suspect=lost[0], by=me, epoch=plan.epoch)
        return PublishSuspicion(suspicion=suspicion, reason=f"{lost[0]} is not heard any more")
    return None


def _register(view: View, _now: float) -> Action | None:
    if view.store.registered:
        return None
    again = view.workers.epoch > 0
    state = MemberState.READY if view.warm else MemberState.WARMING
    if view.workers.state is WorkersState.SUCCEEDED:
        state = MemberState.SUCCEEDED
    reason = "the store lost this member: registering again" if again else "registering"
    return Register(state=state, epoch=view.workers.epoch, stores=view.stores, reason=reason)


def _warm_up(view: View, _now: float) -> Action | None:
    """Ready to start workers: say so."""
    me = view.me
    if me is None or me.value.state is not MemberState.WARMING or not view.warm:
        return None
    return PublishState(state=MemberState.READY, epoch=view.workers.epoch, stores=view.stores, reason="ready to start workers")


def _misfit(view: View, _now: float) -> Action | None:
    """A member of another contract version, or that starts another number of workers, cannot train with the rest."""
    if view.workers.epoch or view.me is None:
        return None
    plan, nproc = view.store.plan, view.settings.nproc
    norm = _norm(view)
    version = norm.contract if norm else CONTRACT_VERSION
    theirs = plan.value.nproc if plan else norm.nproc if norm else nproc
    if version != CONTRACT_VERSION:
        return _misfitting(f"this agent speaks version {CONTRACT_VERSION} of the contract, the others version {version}: "
                           "use one version of elasticjob-runtime in all images of a job")  # fmt: skip
    if theirs != nproc:
        return _misfitting(f"this agent starts {nproc} workers, the job's other members start {theirs} each: "
                           "give all the same --nproc-per-node")  # fmt: skip
    return None


def _norm(view: View) -> MemberValue | None:
    """The member to which all others have to fit: who leads the plan, or was there first. Any other may be a misfit itself."""
    plan = view.store.plan
    if plan is not None:
        leader = view.store.members.get(plan.value.leader)
        return leader.value if leader is not None and leader.name != view.settings.me else None
    founder = view.store.founder
    return founder if founder is not None and founder.state is not MemberState.LEAVING else None


def _misfitting(reason: str) -> Action:
    return Exit(code=ExitCode.CONFIG, reason=reason)


def _follow(view: View, _now: float) -> Action | None:
    """Run what the plan says: its epoch, or nothing."""
    plan, workers = view.store.plan, view.workers
    if plan is None or (view.runs_plan and workers.state is not WorkersState.NONE):
        return None
    why = f"plan {plan.epoch}: {plan.value.message or plan.value.reason.value}"
    if workers.state in _ALIVE:
        return _stop(view, why)
    if plan.rank is None:
        return None
    if plan.epoch > workers.epoch:
        return StartWorkers(plan=plan, reason=why)
    after = max(workers.epoch, view.store.last_epoch, plan.epoch + 1)
    if (me := view.me) is not None and me.value.epoch <= plan.epoch:
        reason = f"the store was set back: plan {plan.epoch} cannot be run after epoch {workers.epoch}; asking for a later one"
        return PublishState(state=MemberState.READY, epoch=after, stores=view.stores, reason=reason)
    return None


def _report(view: View, _now: float) -> Action | None:
    """Say how this epoch's workers ended, once."""
    workers = view.workers
    if not view.runs_plan:
        return None
    if workers.failure is not None and not _is_reported(view, workers.failure):
        return PublishFailure(failure=workers.failure, reason=f"a worker failed: {workers.failure.message}")
    if workers.state is WorkersState.SUCCEEDED and (me := view.me) is not None:
        said = me.value.state is MemberState.SUCCEEDED and me.value.epoch == workers.epoch
        if not said:
            return PublishState(
                state=MemberState.SUCCEEDED, epoch=workers.epoch, stores=view.stores, reason="all local workers exited with 0"
            )
    return None


def _is_reported(view: View, failure: FailureValue) -> bool:
    """Who sees all failures believes what it sees: a store that came back empty has lost them."""
    if view.store.role is Role.PLANNER:
        return any(other.member == failure.member for other in view.store.failures)
    return view.reported_failure >= failure.epoch


def _watch(view: View, now: float) -> Action | None:
    """Watch as much as this member's place in the line asks for, no more."""
    role, predecessor, why = wanted_role(view, now)
    if view.store.role is role and (role is Role.PLANNER or view.store.predecessor == predecessor):
        return None
    return Subscribe(role=role, predecessor=predecessor, reason=why)


def wanted_role(view: View, now: float) -> tuple[Role, str, str]:
    """(role, predecessor to watch, why)."""
    plan, store = view.store.plan, view.store
    since = trouble_since(view)
    if since is not None and now >= since + takeover_delay(view):
        return Role.PLANNER, "", "trouble, and no new plan: looking for myself"
    if plan is None:
        if store.role is None:
            return Role.FOLLOWER, "", "finding out who was here first"
        return _first_in_line(view, store.predecessor)
    if plan.rank is None:
        return _first_in_line(view, plan.value.leader)
    return _first_in_line(view, plan.rank.predecessor)


def _first_in_line(view: View, predecessor: str) -> tuple[Role, str, str]:
    if not predecessor:
        return Role.PLANNER, "", "first in line: planning"
    plan, me = view.store.plan, view.me
    member = view.store.members.get(predecessor)
    if plan is None and member is not None and me is not None and member.create_revision >= me.create_revision:
        return Role.FOLLOWER, "", f"{predecessor} registered after me: finding out who is before me in line"
    watched = view.store.role is Role.PLANNER or view.store.predecessor == predecessor
    if watched and (member is None or member.value.state is MemberState.LEAVING):
        return Role.PLANNER, "", f"{predecessor}, before me in line, is gone: looking for myself"
    if plan is not None and member is not None and (member.create_revision > plan.mod_revision or predecessor == view.settings.me):
        return Role.PLANNER, "", f"{predecessor}, before me in line, registered after plan {plan.epoch}: looking for myself"
    return Role.FOLLOWER, predecessor, f"following; {predecessor} is before me in line"


def trouble_since(view: View) -> float | None:
    """When this agent saw that the current plan cannot go on; None: it has not."""
    plan, workers = view.store.plan, view.workers
    if plan is None or not view.runs_plan:
        return None
    leader = plan.value.leader
    moments = [one.seen_at for one in view.store.suspicions if one.value.suspect == leader != view.settings.me]
    if workers.failure is not None:
        moments.append(workers.changed_at)
    return min(moments, default=None)


def takeover_delay(view: View) -> float:
    """Grows with the rank, so that the planner's successor comes first and the others need not come at all. At most 3 s; and as long as
    the planner may wait before it restarts the same crash once more, unless it is the planner who is not heard."""
    plan = view.store.plan
    rank = plan.rank.group_rank if plan and plan.rank else 20
    silent = plan is not None and any(one.value.suspect == plan.value.leader for one in view.store.suspicions)
    history = crash_loop.history_of(plan.value if plan and not silent else None)
    return min(3.0, view.settings.takeover_delay * rank) + crash_loop.longest_delay(history, view.settings.crash_limits)


def _restore(view: View, now: float) -> Action | None:
    """The store came back empty while the job went on: the member that leads puts its plan back; without it, a new one is made."""
    plan, me = view.workers.plan, view.me
    if view.store.plan is not None or plan is None or view.store.role is None or me is None or plan.epoch < view.store.last_epoch:
        return None
    if plan.rank is not None and plan.rank.group_rank == 0:
        return RestorePlan(plan=plan, reason=f"the store lost plan {plan.epoch}: writing it again")
    until = me.seen_at + view.settings.reregister_grace
    if now < until:
        return Wait(until=until, reason=f"the store lost plan {plan.epoch}: {plan.value.leader} writes it again")
    return None


def _lead(view: View, now: float) -> Action | None:
    """Plan, where this member is the first in line that can be reached."""
    if view.store.role is not Role.PLANNER:
        since = trouble_since(view)
        return None if since is None else Wait(until=since + takeover_delay(view), reason="waiting for a new plan")
    before = _before_me(view)
    if not before:
        return next_plan(view, now)
    unasked = tuple(member for member in before if not _fresh(view, member, now))
    if trouble_since(view) is not None and unasked:
        return ProbePeers(members=unasked, reason=f"asking {len(unasked)} members before me in line whether they are there")
    return Wait(
        until=now + view.settings.probe_age if trouble_since(view) is not None else None,
        reason=f"{before[0].name} is before me in line",
    )


def _fresh(view: View, member: Member, now: float) -> bool:
    probe = view.probes.get(member.name)
    same = probe is not None and probe.incarnation == member.value.incarnation
    return same and probe is not None and now - probe.at <= view.settings.probe_age


def _before_me(view: View) -> list[Member]:
    """Members that plan before this one: lower ranks, or, where there is no plan, earlier registrations."""
    plan, me = view.store.plan, view.me
    if me is None:
        return []
    mine = _place(plan, me)
    return [
        member
        for member in view.store.members.values()
        if member.name != me.name
        and member.value.state is not MemberState.LEAVING
        and _place(plan, member) < mine
        and not known_unreachable(view, member)
    ]


def _place(plan: Plan | None, member: Member) -> tuple[int, int]:
    rank = plan.ranks.get(member.name) if plan and plan.ranks else None
    if rank is not None and rank.incarnation == member.value.incarnation:
        return (0, rank.group_rank)
    return (1, member.create_revision)


def _stop(view: View, reason: str) -> Action:
    if view.workers.state is WorkersState.STOPPING:
        return Wait(reason=f"stopping the workers: {reason}")
    return StopWorkers(reason=reason)


def _doing(view: View) -> str:
    plan = view.store.plan
    if not view.warm:
        return "warming up: importing what the script needs"
    if plan is None:
        return "waiting for the first plan"
    if plan.rank is None:
        return f"spare: plan {plan.epoch} has {plan.value.size} members, all it wants"
    return f"training: plan {plan.epoch}, group rank {plan.rank.group_rank} of {plan.value.size}"
