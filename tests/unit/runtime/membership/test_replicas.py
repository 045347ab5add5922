"""Replicas: who is put together, when they start again, and that plans contain whole ones only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from elasticjob_runtime.contract import NO_REPLICA, PEER_LOST, MemberState, PlanReason, ReplicaValue, SpecValue
from elasticjob_runtime.membership.actions import AssignReplicas, ProposePlan
from elasticjob_runtime.membership.decide import decide
from elasticjob_runtime.membership.ranks import by_location
from elasticjob_runtime.membership.replicas import assign_replicas, whole_replicas
from elasticjob_runtime.membership.view import Member, Plan, Probe, Role, View, Workers, WorkersState

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    decided,
    describe,
    make_failure,
    make_member,
    make_plan,
    make_view,
    runs,
)

WARMING = MemberState.WARMING


def orders(*replicas: str, world: int = 1, first: int = 0) -> dict[str, ReplicaValue]:
    """`orders("ab", "cd")`: of two replicas."""
    return {
        name: ReplicaValue(
            index=first + number, world=world, incarnation=f"{name}1", ordinal=ordinal, members=tuple(members),
            master_addr="10.0.0.1", master_port=50, agent_store=True,
        )
        for number, members in enumerate(replicas)
        for ordinal, name in enumerate(members)
    }  # fmt: skip


def there(names: str, **changed: Mapping[str, Any]) -> dict[str, Member]:
    """Members of replicas of two, whose worker processes are ready to join round 1."""
    fields: dict[str, Any] = {"replica_size": 2, "replica_ports": [50, 51], "in_place": 1, "stores": True}
    return {name: make_member(name, **{**fields, **changed.get(name, {})}) for name in names}


def view(
    names: str | Mapping[str, Member] = "abcd",
    known: Mapping[str, ReplicaValue] | None = None,
    plan: Plan | None = None,
    *,
    size: int = 2,
    **fields: Any,
) -> View:
    """What the planner sees of members in replicas of two: by default of a job that trains with 2 to 6."""
    members = there(names) if isinstance(names, str) else names
    settings = {"replica_size": size, "min": 2, "max": 6, **fields.pop("settings", {})}
    store = {"replicas": orders("ab", "cd") if known is None else known, **fields.pop("store", {})}
    if plan is not None:
        mine = store["replicas"].get(fields.get("me", "a"))
        plan = dataclasses.replace(plan, replica=mine)
    return make_view(there=members, plan=plan, settings=settings, store=store, **{"stores": True, **fields})


def trains(names: str = "abcd", **fields: Any) -> Plan:
    return make_plan(names, in_place=True, agent_store=True, replica_size=2, **fields)


def failed(world: int = 1) -> dict[str, Any]:
    return {"world_over": world}


NONE_YET = ReplicaValue(index=NO_REPLICA, world=2, incarnation="c1")

PLANNED: dict[str, Case] = {
    "all are there: they are put together in the order of their names":
        Case(view("dbcaef", {}), "replica 0 in world 1: a b; replica 1 in world 1: c d; replica 2 in world 1: e f"),
    "and then planned, one replica after the other":
        Case(view("abcdef", orders("ab", "dc", "ef")), "plan 1: a b d c e f, Start, 0 restarts, in place"),
    "one is too many":
        Case(view("abcde", {}, settings={"max": 4}), "replica 0 in world 1: a b; replica 1 in world 1: c d"),
    "the first plan has whole replicas only":
        Case(view("abcde", {}, store={"members": there("abcde")}),
            "replica 0 in world 1: a b; replica 1 in world 1: c d"),
    "no agent hosts a store in which the replicas meet: the job fails":
        Case(view(there("abcd", **{name: {"stores": False} for name in "abcd"}), settings={"max": 4}, stores=False),
            "outcome failed"),
    "and before that, one that was lost may be started again":
        Case(view(there("abcd", **{name: {"stores": False, "seen_at": NOW - 1} for name in "abcd"}),
            settings={"max": 4}, stores=False), "wait 29 s"),
    "one is enough":
        Case(view(there("abcd", **{name: {"stores": False} for name in "abd"}), settings={"max": 4}, stores=False),
            "plan 1: c d a b, Start, 0 restarts, in place"),
    "half a replica cannot train": Case(view("a", {}), "wait"),
    "a member is gone: its replica is left out":
        Case(view("abc", plan=trains(), probes=answers("bc")), "plan 2: a b, MemberLost, 0 restarts, in place"),
    "a worker process has failed: its replica is left out":
        Case(view(plan=trains(), failures=[make_failure("d")], probes=answers("bcd")),
            "plan 2: a b, WorkerFailed, 1 restarts, in place"),
    "the planner's own replica is":
        Case(view(plan=trains(), failures=[make_failure("a")], probes=answers("bcd")),
            "plan 2: c d, WorkerFailed, 1 restarts, in place"),
    "a failure that follows from the end of the replica elsewhere is not counted again":
        Case(view(there("abcd", c=failed()), plan=trains(), probes=answers("bcd"),
            failures=[dataclasses.replace(make_failure("d", reason=PEER_LOST), replica_world=1)]),
            "plan 2: a b, Start, 0 restarts, in place"),
    "a member drains: its replica is left out":
        Case(view(plan=trains(), spec=SpecValue(min=2, max=6, draining=["c"])),
            "plan 2: a b, MemberLeft, 0 restarts, in place"),
    "no replica is left: both train again":
        Case(view(plan=trains(), failures=[make_failure("a"), make_failure("c")], probes=answers("bcd")),
            "plan 2: a b c d, WorkerFailed, 1 restarts, in place"),
    "survivors of two broken replicas are put together":
        Case(view("abce", orders("ab", "cd", "ef"), plan=trains("ab")), "replica 1 in world 2: c e"),
    "a new member takes the place of one that is gone":
        Case(view("abcx", orders("ab", "cd"), plan=trains("ab")), "replica 1 in world 2: c x"),
    "a survivor without a partner ends its worker processes":
        Case(view("abc", orders("ab", "cd"), plan=trains("ab")), "replica -1 in world 2: c"),
    "once": Case(view("abc", {**orders("ab"), "c": NONE_YET}, plan=trains("ab")), "wait"),
    "a replica whose world is over gets another one":
        Case(view(there("abcd", c=failed()), plan=trains("ab")), "replica 1 in world 2: c d"),
    "but not while a member of it waits to try again":
        Case(view(there("abcd", c={**failed(), "state": WARMING, "failed": 1}), plan=trains("ab")),
            "replica -1 in world 2: d"),
    "a member that did not answer once may be back":
        Case(view(plan=trains("ab"), probes=answers(silent="d")), "wait 1 s"),
    "one that the planner reaches, and another member of its replica does not, is in no plan":
        Case(view(there("abcd", c={"cut_from": "d"}), plan=trains("ab")), "wait"),
    "a replica in the plan whose members do not reach each other is left out":
        Case(view(there("abcd", c={"cut_from": "d"}), plan=trains(), probes=answers("bcd")),
            "plan 2: a b, MemberLost, 0 restarts, in place"),
    "if there is no other one, it keeps its state and waits":
        Case(view(there("abcd", b={"cut_from": "a"}, c={"cut_from": "d"}), plan=trains(), probes=answers("bcd")),
            "wait"),
    "whom a member could not reach in an earlier replica does not matter":
        Case(view(there("abcd", c={"cut_from": "x"}), plan=trains()), "wait"),
    "a replica is ready to join when all of its members are":
        Case(view(there("abcd", d={"in_place": 0}), plan=trains("ab")), "wait"),
    "then it joins":
        Case(view(plan=trains("ab"), probes=answers("cd"), spec=SpecValue(min=2, max=4)),
            "plan 2: a b c d, MemberJoined, 0 restarts, in place"),
    "the group shrinks by replicas":
        Case(view(plan=trains(), spec=SpecValue(min=2, max=6, wanted=3)), "plan 2: a b, Resized, 0 restarts, in place"),
    "an order for an earlier agent of that name does not count":
        Case(view("abcd", {**orders("ab", "cd"), "d": dataclasses.replace(orders("cd")["d"], incarnation="d0")},
            plan=trains("ab")), "replica 1 in world 2: c d"),
    "what etcd has lost, members know":
        Case(view(there("abcd", **{name: {"replica": order} for name, order in orders("ab", "cd", world=5).items()}),
            {}, plan=trains(), spec=SpecValue(min=2, max=4)), "wait"),
    "another replica size is not for this job":
        Case(view(there("abcd", d={"replica_size": 1}), {}, settings={"max": 4}), "replica 0 in world 1: a b"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANNED)
def test_the_planner_keeps_replicas_whole(name: str) -> None:
    case = PLANNED[name]
    assert decided(case.view) == case.does


def in_world(plan: Plan, world: int, state: WorkersState = WorkersState.RUNNING, **fields: Any) -> Workers:
    """Worker processes of replica 0 of `a` and `b`, in its world of this number."""
    return runs(dataclasses.replace(plan, replica=orders("ab", world=world)["a"]), state, **fields)


NONE_YET_OF_A = ReplicaValue(index=NO_REPLICA, world=9, incarnation="a1")
BOTH, OTHERS = trains("ba"), trains("cd")


def member_view(
    world: int, workers: Workers, plan: Plan = OTHERS, probes: Mapping[str, Probe] | None = None, **own: Any
) -> View:
    """What `a`, which does not plan, sees: its replica is in `world`; 0: it knows of none, -1: it is in none."""
    order = orders("ab", world=world)["a"] if world > 0 else NONE_YET_OF_A
    members = there("a", a=own)
    return view(
        members, {"a": order} if world else {}, plan, workers=workers, probes=probes or {}, role=Role.FOLLOWER,
        predecessor=plan.value.leader, store={"members": {**members, **there("bcd")}},
    )  # fmt: skip


LEFT = trains("cd", round_number=2, reason=PlanReason.MEMBER_LEFT)
TRAIN, ENDED = in_world(BOTH, 1), in_world(BOTH, 1, WorkersState.NONE)
ABLE: dict[str, Any] = {"in_place": True, "movable": True}


def leaves(ago: float, **fields: Any) -> Workers:
    """Worker processes of a replica that is left out, which were told so a moment ago."""
    return in_world(LEFT, 1, entered=1, began_at=NOW - ago, **ABLE, **fields)


FOLLOWED: dict[str, Case] = {
    "trains": Case(member_view(1, TRAIN, BOTH), "wait"),
    "the replica has another world: the processes end": Case(member_view(2, TRAIN, BOTH), "stop"),
    "the replica is left out as planned, and has another world: first they are told":
        Case(member_view(2, in_world(BOTH, 1, **ABLE), LEFT), "move to plan 2, 0.5 s"),
    "then the step ends, in which the others take part": Case(member_view(2, leaves(0.2), LEFT), "wait 0.3 s"),
    "it takes too long": Case(member_view(2, leaves(0.6), LEFT), "stop"),
    "it has ended": Case(member_view(2, leaves(0.2, waiting=True), LEFT), "stop"),
    "it belongs to no replica any more": Case(member_view(-1, TRAIN, BOTH), "stop"),
    "they have ended, and there is a new world: another plan must come, too":
        Case(member_view(2, ENDED, BOTH), "publish ready of round 2"),
    "they have ended, and there is no new world yet":
        Case(member_view(1, ENDED, BOTH), "publish ready of round 0, in place 0, world 1 over"),
    "that is published": Case(member_view(1, ENDED, BOTH, world_over=1), "wait"),
    "an agent that was started again knows its last world by what it has published":
        Case(member_view(1, Workers(), BOTH, world_over=1), "wait"),
    "all have finished":
        Case(member_view(1, in_world(BOTH, 1, WorkersState.SUCCEEDED), BOTH, state=MemberState.SUCCEEDED, round=1),
            "wait"),
    "outside the plan, they start in the replica's world": Case(member_view(1, Workers()), "start plan 1 alone"),
    "not without a replica": Case(member_view(0, Workers()), "wait"),
    "nor if it belongs to none": Case(member_view(-1, Workers()), "wait"),
    "etcd has lost the replica: they run on, and say where":
        Case(member_view(0, in_world(BOTH, 3), BOTH), "publish ready of round 0, in replica 0, world 3"),
    "the other member of the replica did not answer a moment ago":
        Case(member_view(1, TRAIN, BOTH, probes=answers(silent="b", ago=1.0)), "publish ready of round 0, cut from b"),
    "that counts for a while":
        Case(member_view(1, TRAIN, BOTH, probes=answers(silent="b", ago=1.0), cut_from="b"), "wait 4 s"),
    "and then no more":
        Case(member_view(1, TRAIN, BOTH, probes=answers(silent="b", ago=5.0), cut_from="b"),
            "publish ready of round 0, cut from none"),
    "it answers again":
        Case(member_view(1, TRAIN, BOTH, probes=answers("b"), cut_from="b"), "publish ready of round 0, cut from none"),
    "etcd was restored from a backup":
        Case(member_view(1, in_world(BOTH, 3), BOTH), "publish ready of round 0, in replica 0, world 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_member_keeps_its_worker_processes_in_the_world_of_its_replica(name: str) -> None:
    case = FOLLOWED[name]
    assert decided(case.view) == case.does


def assigned(seen: View, names: str) -> AssignReplicas:
    found = assign_replicas(seen, [seen.store.members[name] for name in names], "")
    assert found is not None
    return found


def test_two_worlds_in_a_row_use_different_ports() -> None:
    """The store of the first may still listen."""
    again = assigned(view(there("ab", a=failed()), orders("ab"), plan=trains("cd")), "ab")
    ((_, (first, second)),) = again.parts
    assert (first.master_port, second.master_port) == (51, 51)
    assert (first.master_addr, first.ordinal, second.ordinal, first.members) == ("10.0.0.97", 0, 1, ("a", "b"))


def test_no_two_replicas_have_the_same_number() -> None:
    found = assigned(view("abcdefgh", orders("ab", "cx", first=1), plan=trains("ab")), "abcdefgh")
    assert [orders[0].index for _, orders in found.parts] == [2, 0, 3]


def test_a_world_number_is_never_used_again() -> None:
    members = there("abcd", c={"world_over": 7, "state": WARMING})
    assert {order.world for _, of in assigned(view(members, {}), "abd").parts for order in of} == {8}


def test_the_order_of_a_member_that_is_gone_is_removed() -> None:
    found = assigned(view("abef", {**orders("ab"), **orders("zy", first=1)}, plan=trains("ab")), "abef")
    assert found.gone == ("y", "z")


def test_members_on_one_node_are_put_together() -> None:
    locations = {"a": "rack-1/n1", "b": "rack-2/n2", "c": "rack-1/n1", "d": "rack-2/n2"}
    action = decide(view("abcd", {}, settings={"max": 4}, store={"locations": locations}), NOW)
    assert describe(action) == "replica 0 in world 1: a c; replica 1 in world 1: b d"


def test_replicas_stay_together_when_ranks_follow_the_network() -> None:
    locations = {"a": "rack-1", "b": "rack-2", "c": "rack-2", "d": "rack-2", "e": "rack-1", "f": "rack-2"}
    order = by_location([make_member(name) for name in "abcdef"], locations, 2)
    assert [member.name for member in order] == ["a", "b", "e", "f", "c", "d"]


def test_only_members_whose_orders_agree_are_whole() -> None:
    known = {**orders("ab"), "b": orders("ab", world=2)["b"], **orders("cd", first=1)}
    seen = view("abcd", known)
    assert [member.name for member in whole_replicas(seen, list(seen.store.members.values()))] == ["c", "d"]


def test_a_plan_says_by_which_replicas_it_was_decided() -> None:
    known = orders("ab", "cd", "ef")
    action = decide(view("abcdef", known), NOW)
    assert isinstance(action, ProposePlan)
    assert action.replicas == known


def test_without_replicas_nothing_is_assigned() -> None:
    seen = make_view(plan=make_plan("abc"))
    assert assign_replicas(seen, list(seen.store.members.values()), "") is None
