"""Plans are written in batches, and never over another planner's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest
from elasticjob_runtime.contract import (
    MAX_REPLICA_SIZE,
    PEER_LOST,
    FailureValue,
    OutcomeState,
    OutcomeValue,
    PlanReason,
    PlanValue,
    RankValue,
    ReplicaValue,
)
from elasticjob_runtime.etcd.interface import Delete, Get, KeyRange, KeyValue
from elasticjob_runtime.etcd.protocol import MAX_OPERATIONS
from elasticjob_runtime.membership.actions import AssignReplicas, ProposePlan, PublishOutcome
from elasticjob_runtime.membership.replicas import MAX_REMOVED
from elasticjob_runtime.membership.view import Member
from elasticjob_runtime.rendezvous.plan_writer import (
    BATCH,
    CONSEQUENCE_BYTES,
    PlanOutdatedError,
    PlanWriter,
    for_the_store,
)

from hack.embedded_etcd.memory import MemoryStore
from tests.unit.runtime.membership.builders import make_member
from tests.unit.runtime.rendezvous.sessions import KEYS, value_in

SUCCEEDED = OutcomeValue(state=OutcomeState.SUCCEEDED, reason="r")


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    yield store
    store.close()


def register(store: MemoryStore, *names: str) -> list[Member]:
    found = []
    for name in names:
        value = make_member("a", incarnation=f"{name}1", stores=True).value
        revision = store.put(KEYS.member(name), value.to_json())
        found.append(Member(name=name, create_revision=revision, value=value))
    return found


def register_many(store: MemoryStore, count: int) -> list[Member]:
    return register(store, *(f"m{number:04}" for number in range(count)))


class Planner(PlanWriter):
    def __init__(self, store: MemoryStore, name: str = "a.1", batch: int = BATCH) -> None:
        super().__init__(store, KEYS, name, batch=batch)

    def plan(
        self, members: Sequence[Member], round_number: int = 1, after: int = 0, *, replica_size: int = 0,
        kept_failure: str = "", nproc: int = 1,
    ) -> int:  # fmt: skip
        action = ProposePlan(
            round=round_number, members=tuple(members), restart_count=2, plan_reason=PlanReason.START, message="why",
            expected_mod_revision=after, reason="why", replica_size=replica_size,
        )  # fmt: skip
        return self.propose(action, nproc, told_nothing, kept_failure=kept_failure)


def told_nothing(_name: str) -> tuple[ReplicaValue | None, int]:
    return None, 0


def plan_in(store: MemoryStore) -> PlanValue:
    return value_in(store, KEYS.plan, PlanValue)


def values_in(store: MemoryStore, folder: str) -> tuple[KeyValue, ...]:
    return store.range(Get(KeyRange.prefix(folder))).kvs


def ranks_in(store: MemoryStore, attempt: str = "") -> dict[str, RankValue]:
    """Of the plan in the store, unless `attempt` names another."""
    start = KEYS.rank(attempt or plan_in(store).attempt, "")
    return {kv.key[len(start) :]: RankValue.from_json(kv.value) for kv in values_in(store, start)}


@pytest.mark.parametrize("batch", [1, 2, 3, BATCH])
def test_a_plan_is_written_with_the_ranks_of_its_members(store: MemoryStore, batch: int) -> None:
    members = register(store, "a", "b", "c")
    revision = Planner(store, batch=batch).plan(members, 5, nproc=2)
    plan = plan_in(store)
    assert (plan.round, plan.size, plan.world_size, plan.leader) == (5, 3, 6, "a")
    assert (plan.restart_count, plan.agent_store) == (2, True)
    assert (plan.master_addr, plan.master_port) == (members[0].value.address, members[0].value.ports[5 % 4])
    ranks = ranks_in(store)
    assert {name: (rank.group_rank, rank.predecessor, rank.incarnation) for name, rank in ranks.items()} == {
        "a": (0, "", "a1"), "b": (1, "a", "b1"), "c": (2, "b", "c1"),
    }  # fmt: skip
    assert [one.name for one in ranks["b"].neighbours] == ["c", "a"]
    assert revision == store.revision


@pytest.mark.parametrize(("names", "neighbours"), [("a", [""]), ("ab", ["b", "a"])])
def test_a_small_groups_members_are_each_others_only_neighbours(
    store: MemoryStore, names: str, neighbours: list[str]
) -> None:
    Planner(store).plan(register(store, *names))
    assert ["".join(one.name for one in rank.neighbours) for rank in ranks_in(store).values()] == neighbours


def test_only_one_of_two_planners_writes_its_plan(store: MemoryStore) -> None:
    members = register(store, "a", "b")
    Planner(store, "a.1").plan(members)
    with pytest.raises(PlanOutdatedError):
        Planner(store, "b.1").plan(members)
    assert ".a.1." in plan_in(store).attempt


def test_a_plan_with_a_member_that_left_is_rejected(store: MemoryStore) -> None:
    members = register(store, "a", "b")
    gone = dataclasses.replace(members[1], create_revision=members[1].create_revision - 1)
    with pytest.raises(PlanOutdatedError):
        Planner(store).plan([members[0], gone])
    assert store.get(KEYS.plan) is None


def test_no_plan_is_written_after_the_outcome(store: MemoryStore) -> None:
    store.put(KEYS.outcome, SUCCEEDED.to_json())
    with pytest.raises(PlanOutdatedError):
        Planner(store).plan(register(store, "a"))
    assert store.get(KEYS.plan) is None


def test_ranks_of_a_failed_attempt_do_not_count_for_the_next(store: MemoryStore) -> None:
    members = register(store, "a", "b", "c")
    planner = Planner(store, batch=1)
    with pytest.raises(PlanOutdatedError):
        planner.plan([*members[:2], dataclasses.replace(members[2], create_revision=1)])
    planner.plan(members[:1])
    assert set(ranks_in(store)) == {"a"}


def test_a_new_plan_deletes_old_ranks_and_suspicions(store: MemoryStore) -> None:
    members = register(store, "a")
    planner, after = Planner(store), 0
    for round_number in (1, 2, 3, 4):
        store.put(KEYS.suspicion(round_number - 1, "x", "y"), "{}")
        after = planner.plan(members, round_number, after)
    kept = {kv.key.split("/")[4][:8] for kv in values_in(store, KEYS.ranks)}
    assert kept == {"00000003", "00000004"}, "a slow member still finds the ranks of the previous plan"
    assert values_in(store, KEYS.suspects) == ()


def assignment(members: Sequence[Member], size: int, world: int = 1, gone: tuple[str, ...] = ()) -> AssignReplicas:
    parts = [tuple(members[start : start + size]) for start in range(0, len(members), size)]
    return AssignReplicas(
        parts=tuple(
            (part, tuple(ReplicaValue(index=number, world=world, incarnation="a1", members=("x",)) for _ in part))
            for number, part in enumerate(parts)
        ),
        known={}, gone=gone, expected_mod_revision=0, reason="why",
    )  # fmt: skip


SIZES = [*range(BATCH - 1, MAX_OPERATIONS + 2), 1000]


@pytest.mark.parametrize(("count", "replica_size"), [*((size, 0) for size in SIZES), (MAX_OPERATIONS + 1, 1)])
def test_a_plan_of_any_size_fits_into_transactions(store: MemoryStore, count: int, replica_size: int) -> None:
    members = register_many(store, count)
    Planner(store).plan(members, 2, replica_size=replica_size, kept_failure=KEYS.failure(1, "m0000"))
    assert len(ranks_in(store)) == plan_in(store).size == count


def test_the_largest_replica_fits_into_a_transaction_while_others_are_gone(store: MemoryStore) -> None:
    gone = tuple(f"gone-{number}" for number in range(MAX_REMOVED))
    for name in gone:
        store.put(KEYS.replica(name), "{}")
    members = register_many(store, MAX_REPLICA_SIZE)
    Planner(store).assign(assignment(members, MAX_REPLICA_SIZE, gone=gone), told_nothing)
    assert [kv.key for kv in values_in(store, KEYS.replicas)] == [KEYS.replica(member.name) for member in members]


@pytest.mark.parametrize("batch", [1, 5, BATCH])
def test_every_member_is_told_its_replica(store: MemoryStore, batch: int) -> None:
    members = register(store, "a", "b", "c", "d", "e", "f")
    store.put(KEYS.replica("z"), "{}")
    key, revision = Planner(store, batch=batch).assign(assignment(members, 2, gone=("z",)), told_nothing)
    kvs = {kv.key: kv for kv in values_in(store, KEYS.replicas)}
    assert [ReplicaValue.from_json(kv.value).index for kv in kvs.values()] == [0, 0, 1, 1, 2, 2]
    assert kvs[key].mod_revision == revision
    for first, second in ("ab", "cd", "ef"):  # a replica is never told in parts
        assert kvs[KEYS.replica(first)].mod_revision == kvs[KEYS.replica(second)].mod_revision


@pytest.mark.parametrize("heard", [False, True], ids=["before the other hears of it", "after it has decided"])
def test_only_one_of_two_planners_puts_a_member_into_a_replica(store: MemoryStore, heard: bool) -> None:
    members = register(store, "a", "b", "c")
    Planner(store, "a.1").assign(assignment(members[:2], 2), told_nothing)
    told = {kv.key: (ReplicaValue.from_json(kv.value), kv.mod_revision) for kv in values_in(store, KEYS.replicas)}

    def known(name: str) -> tuple[ReplicaValue | None, int]:
        return told.get(KEYS.replica(name), (None, 0)) if heard else told_nothing(name)

    with pytest.raises(PlanOutdatedError):
        Planner(store, "b.1").assign(assignment(members[1:], 2, world=2), known)
    assert store.get(KEYS.replica("c")) is None


def test_no_plan_contains_a_member_that_another_planner_puts_into_another_replica(store: MemoryStore) -> None:
    members = register(store, "a", "b")
    Planner(store, "a.1").assign(assignment(members, 2), told_nothing)
    with pytest.raises(PlanOutdatedError):
        Planner(store, "b.1").plan(members, replica_size=2)
    assert store.get(KEYS.plan) is None


Lost = tuple[Planner, PlanValue, dict[str, RankValue]]


@pytest.fixture
def lost(store: MemoryStore) -> Lost:
    """A plan whose store has lost everything, and the ranks that it had."""
    planner = Planner(store, batch=1)
    planner.plan(register(store, "a", "b", "c"))
    plan, ranks = plan_in(store), ranks_in(store)
    store.txn([], [Delete(KeyRange.prefix(KEYS.root))])
    return planner, plan, ranks


@pytest.mark.parametrize(("by", "known"), [("its planner", "abc"), ("another member", "a")])
def test_a_lost_plan_is_restored_unchanged_with_the_ranks_that_are_known(
    store: MemoryStore, lost: Lost, by: str, known: str
) -> None:
    planner, plan, ranks = lost
    (planner if by == "its planner" else Planner(store, "other")).restore(plan, "a", ranks["a"])
    assert plan_in(store) == plan
    assert ranks_in(store) == {name: ranks[name] for name in known}


def test_a_restore_never_overwrites_a_newer_plan(store: MemoryStore, lost: Lost) -> None:
    planner, plan, ranks = lost
    Planner(store, "b.1").plan(register(store, "b"), 9)
    with pytest.raises(PlanOutdatedError):
        planner.restore(plan, "a", ranks["a"])
    assert plan_in(store).round == 9


def test_the_outcome_is_written_once_and_only_for_the_current_plan(store: MemoryStore) -> None:
    planner = Planner(store)
    revision = planner.plan(register(store, "a"))
    with pytest.raises(PlanOutdatedError):
        planner.publish_outcome(PublishOutcome(outcome=SUCCEEDED, expected_mod_revision=revision - 1, reason="r"))
    assert store.get(KEYS.outcome) is None
    planner.publish_outcome(PublishOutcome(outcome=SUCCEEDED, expected_mod_revision=revision, reason="r"))
    failed = dataclasses.replace(SUCCEEDED, state=OutcomeState.FAILED)
    with pytest.raises(PlanOutdatedError):
        planner.publish_outcome(PublishOutcome(outcome=failed, expected_mod_revision=revision, reason="r"))
    assert value_in(store, KEYS.outcome, OutcomeValue) == SUCCEEDED


# -- failures

CAUSE = FailureValue(
    member="a", round=1, rank=0, local_rank=0, exit_code=1, reason="ApplicationError", message="m" * 200,
    traceback="t" * 4096,
)  # fmt: skip


def fail(store: MemoryStore, round_number: int, name: str, *, reason: str = PEER_LOST) -> str:
    value = dataclasses.replace(CAUSE, member=name, round=round_number, reason=reason, time=round_number)
    store.put(KEYS.failure(round_number, name), for_the_store(value).to_json())
    return KEYS.failure(round_number, name)


def test_a_new_plan_deletes_earlier_failures_except_the_first(store: MemoryStore) -> None:
    """The first failure of the last round is kept for an operator that was down."""
    members = register(store, "a", "b", "c")
    planner = Planner(store)
    revision = planner.plan(members)
    for name in "abc":
        fail(store, 1, name)
    late, first = fail(store, 2, "a"), KEYS.failure(1, "b")
    revision = planner.plan(members, 2, revision, kept_failure=first)
    assert [kv.key for kv in values_in(store, KEYS.failures)] == [first, late]
    planner.plan(members, 3, revision)
    assert values_in(store, KEYS.failures) == ()


def test_failures_of_a_large_group_take_a_few_megabytes_at_most(store: MemoryStore) -> None:
    """Full tracebacks of 3,000 members would take 684 MB, and etcd rejects writes at 2 GB."""
    members = register_many(store, 300)
    planner, revision, most = Planner(store), 0, 0
    for round_number in range(1, 6):
        kept = KEYS.failure(round_number - 1, members[0].name)
        revision = planner.plan(members, round_number, revision, kept_failure=kept)
        for member in members:
            fail(store, round_number, member.name, reason=CAUSE.reason if member is members[0] else PEER_LOST)
        most = max(most, sum(len(kv.value) for kv in values_in(store, KEYS.failures)))
    assert len(values_in(store, KEYS.failures)) <= 301
    assert most * 10 < 4_000_000 * 3, "for 3,000 members"


def test_only_a_failure_that_is_a_cause_keeps_its_full_traceback() -> None:
    assert for_the_store(CAUSE) is CAUSE
    assert len(for_the_store(dataclasses.replace(CAUSE, reason=PEER_LOST)).traceback) == CONSEQUENCE_BYTES
