"""When an agent has to stop its workers because the others train without it, or may. Pure.

A store that is away must stop nobody, and two groups must not train for long: both would write checkpoints. An agent
tells the two apart by whom it still hears: neighbours, whose heartbeats carry the round of the plan that they know;
those it knew outside its group; and the world outside (rendezvous/witnesses.py). docs/design/0002-rendezvous.md has the
table of what is cut from what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from elasticjob_runtime.contract import CONSISTENT, ExitCode
from elasticjob_runtime.membership.actions import (
    Action,
    Exit,
    ProbePeers,
    ProbeWitnesses,
    stop,
)
from elasticjob_runtime.membership.eligibility import doing
from elasticjob_runtime.membership.sizes import group_size, limit
from elasticjob_runtime.membership.view import (
    ALIVE,
    Member,
    Plan,
    View,
)

MOST_ASKED = 16
"""Members outside the group that its leader asks at a time, however many there are."""


def fence(view: View, now: float) -> Action | None:
    return _overtaken(view, now) or _consistent(view, now) or _cut_off(view, now) or _on_an_island(view, now)


def fence_due(view: View, now: float) -> float | None:
    """When `fence` has something new to say, though nothing was observed; None: never."""
    settings, expires = view.settings, view.lease_expires_at
    times = [view.peer_round_at + settings.peer_plan_grace] if superseded(view) else []
    if expires is not None and _trains(view):
        times += [expires, _since(expires, view.silent_since) + settings.partition_grace]
        if now >= expires and _leads(view):
            asked = [view.probes[member.name].at for member in _asked(_outsiders(view)) if member.name in view.probes]
            times += [at + settings.probe_age for at in asked]
            times.append(_since(expires, view.witness_answered_at) + settings.partition_grace)
            times += [
                (view.witnesses_probed_at or 0.0) + wait
                for wait in (settings.witness_probe_interval, settings.witness_timeout)
            ]
    return min((at for at in times if at > now), default=None)


def superseded(view: View) -> bool:
    """A neighbour knows a later plan than the one that runs here. That it is not seen here means that the store is
    not."""
    return view.runs_plan and view.peer_round > view.workers.round


def _overtaken(view: View, now: float) -> Action | None:
    """The others have gone on, with this member or without. Its workers cannot; it waits for the store to tell its new
    place."""
    if (
        not superseded(view)
        or view.workers.state not in ALIVE
        or now < view.peer_round_at + view.settings.peer_plan_grace
    ):
        return None
    return stop(view, f"a neighbour follows plan {view.peer_round}, which the store does not tell here")


def _consistent(view: View, now: float) -> Action | None:
    """The owner wants one group at a time more than training while the store is away."""
    if view.spec.on_partition != CONSISTENT or not _is_out(view, now) or not _trains(view):
        return None
    return stop(view, "the lease has run out and onPartition is Consistent: stopped until the store is back")


def _cut_off(view: View, now: float) -> Action | None:
    """Cut off from the store and from all neighbours: the others have gone on without this member, or will."""
    plan = view.store.plan
    neighbours = plan.rank.neighbours if plan and plan.rank and view.runs_plan else ()
    if not _is_out(view, now) or not neighbours or any(one.name not in view.silent for one in neighbours):
        return None
    return _give_up(view, "cut off: neither the store nor a neighbour can be reached, and the lease has run out")


def _on_an_island(view: View, now: float) -> Action | None:
    """The store is out of reach, and this group trains. Who else could train by now, or soon?"""
    if not _is_out(view, now) or not _trains(view):
        return None
    return _cut_through(view, now) or (_ask_around(view, now) if _leads(view) else None)


def _cut_through(view: View, now: float) -> Action | None:
    """Some of the group are not heard either: the cut goes through it, or they are lost. It cannot train; no use in
    holding on."""
    expires, grace = view.lease_expires_at or 0.0, view.settings.partition_grace
    if not view.silent or now < _since(expires, view.silent_since) + grace:
        return None
    who = ", ".join(sorted(view.silent))
    return stop(
        view, f"neither the store nor {who} can be reached for {grace:g} s: the others may train without this member"
    )


def _ask_around(view: View, now: float) -> Action | None:
    """The leader speaks for its group: if it stops, all do. All members are here; so who is not?"""
    expires, settings = view.lease_expires_at or 0.0, view.settings
    others = _outsiders(view)
    asked = _asked(others)
    fresh = [view.probes[member.name] for member in asked if _answered(view, member, now)]
    if any(probe.round > view.workers.round for probe in fresh):
        return stop(view, "another member follows a later plan, and the lease has run out")
    if len(fresh) < len(asked):
        return ProbePeers(
            members=asked, reason=f"the store is out of reach: asking {len(asked)} others whether they go on without"
        )
    silent = _extrapolated(sum(not probe.reachable for probe in fresh), asked, others)
    if (
        silent
        and group_size(view.spec, silent) is not None
        and (silent == len(others) or now >= expires + settings.partition_grace)
    ):
        return stop(view, f"neither the store nor {silent} others can be reached, enough to train without this group")
    if not _others_may_come(view):
        return None
    if view.witnesses_probed_at is None or now >= max(
        expires, view.witnesses_probed_at + settings.witness_probe_interval
    ):
        return ProbeWitnesses(reason=doing(view))  # every few seconds: no news
    if now < max(
        _since(expires, view.witness_answered_at) + settings.partition_grace,
        view.witnesses_probed_at + settings.witness_timeout,
    ):
        return None  # who was frozen meanwhile asks first, too
    grace = f"{settings.partition_grace:g} s"
    return stop(
        view, f"neither the store nor anything else outside answers for {grace}: somebody else may train by now"
    )


def _is_out(view: View, now: float) -> bool:
    """The lease has run out, as far as this agent knows."""
    return view.lease_expires_at is not None and now >= view.lease_expires_at


def _trains(view: View) -> bool:
    plan = view.store.plan
    return plan is not None and plan.rank is not None and view.runs_plan and view.workers.state in ALIVE


def _leads(view: View) -> bool:
    plan = view.store.plan
    return plan is not None and plan.rank is not None and plan.rank.group_rank == 0


def _outsiders(view: View) -> tuple[Member, ...]:
    """Those outside the plan that were there when the store was last seen, and can be asked: spares, and who was about
    to join."""
    inside = _names_of(view.store.plan) | {view.settings.me}
    return tuple(
        member for member in view.store.members.values() if member.name not in inside and member.value.peer_port
    )


def _names_of(plan: Plan | None) -> frozenset[str]:
    return frozenset(plan.ranks or ()) if plan else frozenset()


def _asked(others: Sequence[Member]) -> tuple[Member, ...]:
    """At most MOST_ASKED of them, spread over all: the cost of an outage does not grow with the number of spares."""
    step = max(1, math.ceil(len(others) / MOST_ASKED))
    return tuple(sorted(others, key=lambda member: member.name)[::step])


def _extrapolated(silent: int, asked: Sequence[Member], others: Sequence[Member]) -> int:
    return math.ceil(silent * len(others) / len(asked)) if asked else 0


def _others_may_come(view: View) -> bool:
    """An operator replaces a node that it does not hear of; without one, further members come only where there is room
    for them."""
    plan = view.store.plan
    return view.store.spec is not None or limit(view.spec) > (plan.value.size if plan else 1)


def _answered(view: View, member: Member, now: float) -> bool:
    probe = view.probes.get(member.name)
    same = probe is not None and probe.incarnation == member.value.incarnation
    return same and probe is not None and now - probe.at < view.settings.probe_age


def _since(expires: float, sign: float | None) -> float:
    """The later of the lease's end and the last sign of life."""
    return expires if sign is None else max(expires, sign)


def _give_up(view: View, reason: str) -> Action:
    return stop(view, reason) if view.workers.state in ALIVE else Exit(code=ExitCode.RESTARTABLE, reason=reason)
