"""When an agent has to stop its workers because the others train without it, or may. Pure.

Two groups must never train at once: both would write checkpoints. But a store that is away must stop nobody. An agent tells the two apart
by what it hears of its neighbours: their heartbeats carry the epoch of the plan that they know.
"""

from __future__ import annotations

from elasticjob_runtime.contract import ExitCode
from elasticjob_runtime.membership.model import ALIVE, Action, Exit, Member, ProbePeers, View, WorkersState, stop
from elasticjob_runtime.membership.sizes import limit


def fence(view: View, now: float) -> Action | None:
    return _overtaken(view, now) or _cut_off(view, now) or _alone(view, now)


def fence_due(view: View, now: float) -> float | None:
    """When `fence` has something new to say, though nothing was observed; None: never."""
    settings, expires = view.settings, view.lease_expires_at
    times = [view.heard_at + settings.hearsay_grace] if superseded(view) else []
    if _is_alone(view) and expires is not None:
        asked = [view.probes[member.name].at for member in _others(view) if member.name in view.probes]
        times += [expires, expires + settings.alone_grace, *(at + settings.probe_age for at in asked if now >= expires)]
    return min((at for at in times if at > now), default=None)


def superseded(view: View) -> bool:
    """A neighbour knows a later plan than the one that runs here. That it is not seen here means that the store is not."""
    return view.runs_plan and view.heard_epoch > view.workers.epoch


def _overtaken(view: View, now: float) -> Action | None:
    """The others have gone on, with this member or without. Its workers cannot; it waits for the store to tell its new place."""
    if not superseded(view) or view.workers.state not in ALIVE or now < view.heard_at + view.settings.hearsay_grace:
        return None
    return stop(view, f"a neighbour follows plan {view.heard_epoch}, which the store does not tell here")


def _cut_off(view: View, now: float) -> Action | None:
    """Cut off from the store and from all neighbours: the others have gone on without this member, or will."""
    plan, expires = view.store.plan, view.lease_expires_at
    neighbours = plan.rank.neighbours if plan and plan.rank and view.runs_plan else ()
    if expires is None or now < expires or not neighbours or any(one.name not in view.silent for one in neighbours):
        return None
    return _give_up(view, "cut off: neither the store nor a neighbour can be reached, and the lease has run out")


def _alone(view: View, now: float) -> Action | None:
    """The only member of its plan has no neighbours to hear. Who else could train: spares, which it asks; or somebody it does not know."""
    expires = view.lease_expires_at
    if not _is_alone(view) or expires is None or now < expires:
        return None
    others = _others(view)
    if not others:
        if now < expires + view.settings.alone_grace or not _others_may_come(view):
            return None
        return _give_up(view, f"the store is out of reach for {view.settings.alone_grace:g} s, and somebody else may train by now")
    fresh = [view.probes[member.name] for member in others if _answered(view, member, now)]
    if any(probe.epoch > view.workers.epoch for probe in fresh):
        return _give_up(view, "another member follows a later plan, and the lease has run out")
    if len(fresh) < len(others):
        return ProbePeers(members=others, reason=f"the store is out of reach: asking {len(others)} others whether they go on without")
    if any(probe.reachable for probe in fresh):
        return None
    return _give_up(view, "cut off: neither the store nor another member can be reached, and the lease has run out")


def _is_alone(view: View) -> bool:
    plan = view.store.plan
    if plan is None or plan.rank is None or not view.runs_plan or view.workers.state is WorkersState.SUCCEEDED:
        return False
    return plan.value.size == 1


def _others(view: View) -> tuple[Member, ...]:
    """Those that were there when the store was last seen, and can be asked."""
    me = view.settings.me
    return tuple(member for member in view.store.members.values() if member.name != me and member.value.peer_port)


def _others_may_come(view: View) -> bool:
    """An operator replaces a node that it does not hear of; without one, a second member comes only where there is room for it."""
    return view.store.spec is not None or limit(view.spec) > 1


def _answered(view: View, member: Member, now: float) -> bool:
    probe = view.probes.get(member.name)
    same = probe is not None and probe.incarnation == member.value.incarnation
    return same and probe is not None and now - probe.at < view.settings.probe_age


def _give_up(view: View, reason: str) -> Action:
    return stop(view, reason) if view.workers.state in ALIVE else Exit(code=ExitCode.RESTARTABLE, reason=reason)
