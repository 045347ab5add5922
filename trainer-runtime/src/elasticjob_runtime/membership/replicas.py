"""Replicas (`--replica-size`): members that train as one. Pure.

The worker processes of a replica are in a world of their own, which lasts over plans. So they start and end together,
and plans contain whole replicas only.

1. The planner says which members are a replica, and the number of its world (`members-replicas/<member>`).
2. A member starts its worker processes in that world, also while it is in no plan. If it is told another world, it ends
   those that run and starts them in the new one.
3. A member whose worker processes have ended says so (`MemberValue.world_over`), and the planner gives the replica
   another world.
4. If a member is gone, is about to leave, or fails before it joins, those that remain are put together with others.
   Until there are enough they belong to no replica.

A member whose order the store has lost keeps its world, and tells the planner (`MemberValue.replica`).

A replica is complete only if its members reach each other. The planner knows that of itself; a member that could not
reach another one of its replica while it planned says so for a while (`MemberValue.cut_from`), for the next planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elasticjob_runtime.contract import NO_REPLICA, PEER_LOST, FailureValue, MemberState, ReplicaValue
from elasticjob_runtime.membership.actions import AssignReplicas, PublishState
from elasticjob_runtime.membership.view import ALIVE, Member, Probe, View, WorkersState

CUT_PAUSE = 5.0
"""Seconds for which a member that did not answer a probe counts as cut off from the one that asked, unless that one
asks again. Longer: fewer plans with replicas that cannot train. Shorter: a replica whose network works again waits
less."""

MAX_REMOVED = 16
"""Orders of members that are gone, removed at a time."""


def newest_replica(order: ReplicaValue | None, member: Member | None) -> ReplicaValue | None:
    """The newest of what the store says of the member's replica, and what the member says; None: nothing."""
    if member is None:
        return None
    said = [replica for replica in (order, member.value.replica) if replica is not None]
    return max(
        (replica for replica in said if replica.incarnation == member.value.incarnation),
        key=lambda replica: replica.world,
        default=None,
    )


# -- a member's part


def world_here(view: View) -> int:
    """The replica's world in which the local worker processes are, or were last; 0: none."""
    plan = view.workers.plan
    return plan.replica.world if plan is not None and plan.replica is not None else 0


def can_start(view: View) -> bool:
    """Whether worker processes may be started: without replicas, always; else once there is a new world for them."""
    if not view.settings.replica_size:
        return True
    plan, me = view.store.plan, view.me
    replica = plan.replica if plan is not None else None
    if replica is None or replica.index == NO_REPLICA or me is None:
        return False
    return replica.world > max(world_here(view), me.value.world_over)


def report_lost_world(view: View, _now: float) -> PublishState | None:
    """Publishes the replica in whose world the worker processes run, if the store has lost it."""
    me, plan, workers = view.me, view.store.plan, view.workers
    if me is None or plan is None or workers.plan is None or workers.state not in ALIVE:
        return None
    if world_here(view) <= (plan.replica.world if plan.replica is not None else 0):
        return None
    return PublishState(
        state=me.value.state, round=me.value.round, stores=view.stores, replica=workers.plan.replica,
        reason="etcd has lost which replica this member belongs to",
    )  # fmt: skip


def report_world_over(view: View, _now: float) -> PublishState | None:
    """Publishes that the replica's world is over here, for which the planner makes another one."""
    me, plan, workers, world = view.me, view.store.plan, view.workers, world_here(view)
    if me is None or not world or plan is None:
        return None
    finished = workers.state is WorkersState.SUCCEEDED and plan.round <= workers.round
    newer = plan.replica is not None and plan.replica.world > world
    if workers.state in ALIVE or me.value.world_over >= world or finished or newer:
        return None
    return PublishState(
        state=me.value.state, round=me.value.round, stores=view.stores, in_place=0, world_over=world,
        reason="the worker processes of this replica have ended here",
    )  # fmt: skip


def report_cut(view: View, now: float) -> PublishState | None:
    """Publishes that another member of this replica does not answer, and when that does not count any more."""
    me = view.me
    if me is None or view.store.role is None:
        return None
    cut_from = next((name for name, probe in _unanswered(view) if now < probe.at + CUT_PAUSE), "")
    if me.value.cut_from == cut_from:
        return None
    reason = f"{cut_from}, of the same replica, does not answer" if cut_from else "the replica may be complete again"
    return PublishState(
        state=me.value.state, round=me.value.round, stores=view.stores, cut_from=cut_from, reason=reason
    )


def cut_due(view: View) -> float | None:
    """When that does not count any more; None: nothing is published."""
    if view.me is None or not view.me.value.cut_from:
        return None
    return max((probe.at + CUT_PAUSE for _, probe in _unanswered(view)), default=None)


def _unanswered(view: View) -> list[tuple[str, Probe]]:
    """Of the other members of this replica those whose last probe failed."""
    replica = replica_of(view, view.me) if view.me is not None else None
    names = replica.members if replica is not None else ()
    return [(name, probe) for name in names if (probe := view.probes.get(name)) is not None and not probe.reachable]


# -- the planner's part


def replica_of(view: View, member: Member) -> ReplicaValue | None:
    """None: it belongs to none."""
    replica = newest_replica(view.store.replicas.get(member.name), member)
    return replica if replica is not None and replica.index != NO_REPLICA else None


def whole_replicas(view: View, members: Sequence[Member]) -> list[Member]:
    """Those of `members` whose replica is among them as a whole, the members of each one after the other by ordinal. Of
    two with the same number, which etcd's loss of data may leave, the first. Without replicas, all."""
    if not view.settings.replica_size:
        return list(members)
    there = {member.name: (member, replica_of(view, member)) for member in members}
    found: list[Member] = []
    done: set[tuple[int, int]] = set()
    indexes: set[int] = set()
    for member in members:
        replica = there[member.name][1]
        if replica is None or (replica.index, replica.world) in done or replica.index in indexes:
            continue
        done.add((replica.index, replica.world))
        if all(
            name in there and _are_together(there[name][1], replica) and not is_cut(view, there[name][0])
            for name in replica.members
        ):
            found += [there[name][0] for name in replica.members]
            indexes.add(replica.index)
    return found


def is_cut(view: View, member: Member) -> bool:
    """Whether it cannot reach another member of its replica."""
    replica = replica_of(view, member)
    return replica is not None and member.value.cut_from in replica.members


def follows_in_replica(view: View, failure: FailureValue) -> bool:
    """Whether it follows from the end of its replica's world at another member, which was counted before."""
    member, world = view.store.members.get(failure.member), failure.replica_world
    replica = replica_of(view, member) if member is not None else None
    if failure.reason != PEER_LOST or not world or replica is None:
        return False
    others = [view.store.members[name] for name in replica.members if name in view.store.members]
    others = [other for other in others if other.name != failure.member]
    return replica.world > world or any(other.value.world_over >= world for other in others)


def with_store_first(members: Sequence[Member], size: int) -> tuple[Member, ...]:
    """The replicas in an order in which the agent of the very first member hosts stores, if there is one."""
    start = next((start for start in range(0, len(members), size) if members[start].value.stores), 0)
    return (*members[start : start + size], *members[:start], *members[start + size :])


def _are_together(one: ReplicaValue | None, other: ReplicaValue) -> bool:
    return one is not None and (one.index, one.world, one.members) == (other.index, other.world, other.members)


def assign_replicas(
    view: View, present: Sequence[Member], in_plan: Iterable[str], *, short: bool = False
) -> AssignReplicas | None:
    """Who is put together, and which replicas get another world; None: all is well.

    `present`: members that could be in a plan, in the order in which they are put together. `in_plan`: those of the
    current plan. `short`: too few replicas are left to train."""
    size = view.settings.replica_size
    if not size:
        return None
    whole = whole_replicas(view, present)
    renewed = [part for part in _parts(whole, size) if _is_over(view, part)]
    free, staying = _without_replica(view, present, whole, frozenset(in_plan))
    rest = [*free, *(staying if short else ())]
    new = _parts(rest[: len(rest) // size * size], size)
    released = [member for member in free[len(new) * size :] if _may_run(view, member)]
    if not (renewed or new or released):
        return None
    parts, world = [*renewed, *new], _last_world(view) + 1
    changed = {member.name for part in (*parts, released) for member in part}
    indexes = _indexes(view, changed, parts)
    told = [(part, _orders(view, part, index, world)) for part, index in zip(parts, indexes, strict=True)]
    for member in released:
        order = ReplicaValue(index=NO_REPLICA, world=world, incarnation=member.value.incarnation)
        told.append(((member,), (order,)))
    plan = view.store.plan
    return AssignReplicas(
        parts=tuple(told),
        known=view.store.replicas,
        gone=tuple(sorted(name for name in view.store.replicas if name not in view.store.members)[:MAX_REMOVED]),
        expected_mod_revision=plan.mod_revision if plan is not None else 0,
        reason=_describe(indexes, len(renewed), released),
    )


def _parts(members: Sequence[Member], size: int) -> list[tuple[Member, ...]]:
    return [tuple(members[start : start + size]) for start in range(0, len(members), size)]


def _is_over(view: View, part: Sequence[Member]) -> bool:
    """Whether the replica's world has ended at one of its members."""
    replica = replica_of(view, part[0])
    return replica is not None and any(member.value.world_over >= replica.world for member in part)


def _without_replica(
    view: View, present: Sequence[Member], whole: Sequence[Member], in_plan: frozenset[str]
) -> tuple[list[Member], list[Member]]:
    """Members that can be put together with others: those without a replica; and those that train beside one that
    is about to leave or have finished: the next plan is made without their replica first, if the others are enough."""
    together = {member.name for member in whole}
    free: list[Member] = []
    staying: list[Member] = []
    taken = {replica.index for member in whole if (replica := replica_of(view, member)) is not None}
    for member in present:
        if member.name in together:
            continue
        replica = replica_of(view, member)
        if _lost_its_replica(view, member) or (replica is not None and replica.index in taken):
            (free if member.value.state is MemberState.READY else staying).append(member)
        elif _is_left(view, member):
            (staying if member.name in in_plan else free).append(member)
    return free, staying


def _lost_its_replica(view: View, member: Member) -> bool:
    """Not if another member of it has only missed a probe."""
    replica = replica_of(view, member)
    if replica is None:
        return True
    others = [view.store.members.get(name) for name in replica.members]
    return any(
        other is None or not _are_together(replica_of(view, other), replica) or other.value.state is MemberState.WARMING
        for other in others
    )


def _is_left(view: View, member: Member) -> bool:
    replica = replica_of(view, member)
    names = replica.members if replica is not None else ()
    others = [view.store.members[name] for name in names if name in view.store.members]
    draining = view.spec.draining
    return any(other.value.state is MemberState.LEAVING or other.name in draining for other in others)


def _may_run(view: View, member: Member) -> bool:
    """Whether it may still have worker processes in the world of a replica that is no more."""
    replica = replica_of(view, member)
    return replica is not None and member.value.world_over < replica.world


def _last_world(view: View) -> int:
    known = [world_here(view), *(replica.world for replica in view.store.replicas.values())]
    for member in view.store.members.values():
        known += [member.value.world_over, member.value.replica.world if member.value.replica is not None else 0]
    return max(known)


def _indexes(view: View, changed: set[str], parts: Sequence[Sequence[Member]]) -> list[int]:
    """Of each part: that of one of its members before, else the lowest that is free."""
    before = {
        member.name: replica.index
        for member in view.store.members.values()
        if (replica := replica_of(view, member)) is not None
    }
    taken = {index for name, index in before.items() if name not in changed}
    found: list[int] = []
    for part in parts:
        own = [before[member.name] for member in part if member.name in before]
        free = (index for index in (*own, *range(len(taken) + 1)) if index not in taken)
        found.append(next(free))
        taken.add(found[-1])
    return found


def _orders(view: View, part: Sequence[Member], index: int, world: int) -> tuple[ReplicaValue, ...]:
    head = part[0]
    return tuple(
        ReplicaValue(
            index=index, world=world, incarnation=member.value.incarnation, ordinal=ordinal,
            members=tuple(one.name for one in part), master_addr=head.value.address,
            master_port=_port(view, head, world), agent_store=head.value.stores,
        )
        for ordinal, member in enumerate(part)
    )  # fmt: skip


def _port(view: View, head: Member, world: int) -> int:
    """Not that of its last world, whose store may still be there."""
    ports, last = head.value.replica_ports, newest_replica(view.store.replicas.get(head.name), head)
    fresh = [port for port in ports if last is None or last.ordinal or port != last.master_port]
    return fresh[world % len(fresh)] if fresh else 0


def _describe(indexes: Sequence[int], renewed: int, released: Sequence[Member]) -> str:
    """For the log."""
    words = []
    if again := indexes[:renewed]:
        words.append(f"starting {_named(again)} again")
    if new := indexes[renewed:]:
        words.append(f"putting {_named(new)} together")
    if released:
        words.append(f"{len(released)} members wait for others to form a replica")
    return "; ".join(words)


def _named(indexes: Sequence[int]) -> str:
    shown = ", ".join(map(str, indexes[:3]))
    return f"replica{'s' if len(indexes) > 1 else ''} {shown}" + (
        f" and {len(indexes) - 3} more" if indexes[3:] else ""
    )
