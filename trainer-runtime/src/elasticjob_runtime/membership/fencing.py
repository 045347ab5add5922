"""Fencing: when an agent must stop its workers because other members train without it, or may do so. Pure.

An unreachable store must not stop training, but two groups must not train for long either: both would write
checkpoints. An agent distinguishes the two cases by what it can still reach: neighbours, whose heartbeats carry the
round of the plan that they know; the members that it knew outside its group; and outside hosts beyond the job
(rendezvous/outside_hosts.py). docs/design/0002-rendezvous.md lists the cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from elasticjob_runtime.contract import CONSISTENT, ExitCode
from elasticjob_runtime.membership.actions import Action, Exit, ProbeOutside, ProbePeers, Wait, stop_at_once
from elasticjob_runtime.membership.eligibility import describe
from elasticjob_runtime.membership.sizes import group_size, limit
from elasticjob_runtime.membership.view import ALIVE, Member, Plan, View

MAX_PROBED = 16
"""At most this many members outside the group are probed at a time."""


def fence(view: View, now: float) -> Action | None:
    # What is certain comes first: a later plan is a fact, and Consistent is the user's choice. The other two rules
    # conclude from silence, which may also be an outage of etcd, and that must not stop training.
    return _stop_superseded(view, now) or _stop_if_consistent(view, now) or _cut_off(view, now) or _isolated(view, now)


def fence_due(view: View, now: float) -> float | None:
    """When to call `fence` again if nothing else happens; None: not needed."""
    settings, expires = view.settings, view.lease_expires_at
    times = [view.peer_round_at + settings.peer_plan_grace] if superseded(view) else []
    if expires is not None and _is_training(view):
        times += [expires, _later(expires, view.silent_since) + settings.partition_grace]
        if now >= expires and _is_leader(view):
            asked = [
                view.probes[member.name].at for member in _to_probe(_outsiders(view)) if member.name in view.probes
            ]
            times += [at + settings.probe_age for at in asked]
            times.append(_later(expires, view.outside_answered_at) + settings.partition_grace)
            times += [
                (view.outside_probed_at or 0.0) + wait
                for wait in (settings.outside_probe_interval, settings.outside_timeout)
            ]
    return min((at for at in times if at > now), default=None)


def superseded(view: View) -> bool:
    """Whether a neighbour knows a later plan than the one that runs here. If this agent does not see it, it does not
    reach the store. The workers of a spare train with no other member, and may wait for the plan."""
    plan = view.store.plan
    in_plan = plan is not None and plan.rank is not None
    return in_plan and view.runs_plan and view.peer_round > view.workers.round


def _stop_superseded(view: View, now: float) -> Action | None:
    """The other members follow a later plan, with this member or without it. Stops the workers and waits to see that
    plan."""
    if (
        not superseded(view)
        or view.workers.state not in ALIVE
        or now < view.peer_round_at + view.settings.peer_plan_grace
    ):
        return None
    return stop_at_once(view, f"a neighbour follows plan {view.peer_round}, which cannot be read from etcd here")


def _stop_if_consistent(view: View, now: float) -> Action | None:
    """With onPartition Consistent, never training twice takes precedence over training without the store."""
    if view.spec.on_partition != CONSISTENT or not _lease_expired(view, now) or not _is_training(view):
        return None
    return stop_at_once(view, "the lease expired and onPartition is Consistent: stopped until etcd is back")


def _cut_off(view: View, now: float) -> Action | None:
    """Cut off from the store and from all neighbours: the other members may continue without this one. Or the store and
    the neighbours went at the same time, as with their node: then this one continues once the store is back."""
    plan = view.store.plan
    neighbours = plan.rank.neighbours if plan and plan.rank and view.runs_plan else ()
    if (
        not _lease_expired(view, now)
        or not neighbours
        or any(neighbour.name not in view.silent for neighbour in neighbours)
    ):
        return None
    reason = "cut off: neither etcd nor any neighbour is reachable, and the lease expired"
    if view.workers.state in ALIVE:
        # Without a grace: processes that miss their peers cannot train, so waiting would gain nothing.
        return stop_at_once(view, reason)
    # The agent stays for a while: most such outages end, and then it needs no new pod.
    until = (view.lease_expires_at or 0.0) + view.settings.cut_off_wait
    if now >= until:
        return Exit(code=ExitCode.RESTARTABLE, reason=reason)
    return Wait(until=until, reason=f"{reason}; waiting for etcd")


def _isolated(view: View, now: float) -> Action | None:
    """The store is unreachable, and this group trains: could another group train too, now or soon?"""
    if not _lease_expired(view, now) or not _is_training(view):
        return None
    return _group_is_split(view, now) or (_probe_outsiders(view, now) if _is_leader(view) else None)


def _group_is_split(view: View, now: float) -> Action | None:
    """Part of the group is unreachable as well, so it cannot train: the partition runs through it, or members are
    lost."""
    expires, grace = view.lease_expires_at or 0.0, view.settings.partition_grace
    if not view.silent or now < _later(expires, view.silent_since) + grace:
        return None
    who = ", ".join(sorted(view.silent))
    return stop_at_once(
        view, f"neither etcd nor {who} was reachable for {grace:g} s: the other members may train without this one"
    )


def _probe_outsiders(view: View, now: float) -> Action | None:
    """The leader decides for its group, of which all members are reachable: if it stops, all stop."""
    expires, settings = view.lease_expires_at or 0.0, view.settings
    outsiders = _outsiders(view)
    asked = _to_probe(outsiders)
    fresh = [view.probes[member.name] for member in asked if _probed_recently(view, member, now)]
    if any(probe.round > view.workers.round for probe in fresh):
        # A later plan is proof, so there is no grace.
        return stop_at_once(view, "another member follows a later plan, and the lease expired")
    if len(fresh) < len(asked):
        return ProbePeers(members=asked, reason=f"etcd is unreachable: probing {len(asked)} members outside the group")
    # Members that answer know no later plan, so they do not train. Silent ones may, if they are enough for a group. If
    # all are silent, this group is the one that is cut off; if only some are, they may just be down: the grace passes.
    silent = _extrapolate(sum(not probe.reachable for probe in fresh), asked, outsiders)
    if (
        silent
        and group_size(view.spec, silent) is not None
        and (silent == len(outsiders) or now >= expires + settings.partition_grace)
    ):
        return stop_at_once(
            view, f"neither etcd nor {silent} other members can be reached, enough to train without this group"
        )
    if not _others_may_train(view):
        return None  # no other group can exist, so an outage of etcd may last any time
    if view.outside_probed_at is None or now >= max(expires, view.outside_probed_at + settings.outside_probe_interval):
        return ProbeOutside(reason=describe(view))  # repeated every few seconds, so the reason stays the usual state
    if now < max(
        _later(expires, view.outside_answered_at) + settings.partition_grace,
        view.outside_probed_at + settings.outside_timeout,
    ):
        return None  # an agent that was frozen meanwhile probes first, too
    grace = f"{settings.partition_grace:g} s"
    return stop_at_once(view, f"neither etcd nor any outside host answered for {grace}: another group may train by now")


def _lease_expired(view: View, now: float) -> bool:
    """Whether the lease has expired, as far as this agent knows."""
    return view.lease_expires_at is not None and now >= view.lease_expires_at


def _is_training(view: View) -> bool:
    plan = view.store.plan
    return plan is not None and plan.rank is not None and view.runs_plan and view.workers.state in ALIVE


def _is_leader(view: View) -> bool:
    plan = view.store.plan
    return plan is not None and plan.rank is not None and plan.rank.group_rank == 0


def _outsiders(view: View) -> tuple[Member, ...]:
    """Members outside the plan that were present when the store was last seen and can be probed: spares and joiners."""
    inside = _members_of(view.store.plan) | {view.settings.me}
    return tuple(
        member for member in view.store.members.values() if member.name not in inside and member.value.peer_port
    )


def _members_of(plan: Plan | None) -> frozenset[str]:
    return frozenset(plan.ranks or ()) if plan else frozenset()


def _to_probe(outsiders: Sequence[Member]) -> tuple[Member, ...]:
    """At most MAX_PROBED of them, spread evenly: the cost of an outage does not grow with the number of spares."""
    step = max(1, math.ceil(len(outsiders) / MAX_PROBED))
    return tuple(sorted(outsiders, key=lambda member: member.name)[::step])


def _extrapolate(silent: int, asked: Sequence[Member], outsiders: Sequence[Member]) -> int:
    return math.ceil(silent * len(outsiders) / len(asked)) if asked else 0


def _others_may_train(view: View) -> bool:
    """An operator replaces nodes that it cannot reach; without one, further members join only up to the maximum."""
    plan = view.store.plan
    return view.store.spec is not None or limit(view.spec) > (plan.value.size if plan else 1)


def _probed_recently(view: View, member: Member, now: float) -> bool:
    probe = view.probes.get(member.name)
    same = probe is not None and probe.incarnation == member.value.incarnation
    return same and probe is not None and now - probe.at < view.settings.probe_age


def _later(expires: float, seen_at: float | None) -> float:
    """The later of the lease's end and the last sign of life."""
    return expires if seen_at is None else max(expires, seen_at)
