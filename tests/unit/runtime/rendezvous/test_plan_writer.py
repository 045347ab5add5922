"""Plans are written in batches, and never over another planner's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest
from elasticjob_runtime.contract import (
    MAX_REPLICA_SIZE,
    PEER_LOST,
    FailureValue,
    Keys,
    OutcomeState,
    OutcomeValue,
    PlanReason,
    PlanValue,
    RankValue,
    ReplicaValue,
)
from elasticjob_runtime.etcd.interface import Delete, Get, KeyRange
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

KEYS = Keys("/p", "run")


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


def proposal(members: Sequence[Member], *, round_number: int = 1, after: int = 0) -> ProposePlan:
    return ProposePlan(
        round=round_number, members=tuple(members), restart_count=2, plan_reason=PlanReason.START, message="why",
        expected_mod_revision=after, reason="why",
    )  # fmt: skip


def told_nothing(_name: str) -> tuple[ReplicaValue | None, int]:
    return None, 0


def writer(store: MemoryStore, name: str = "a.1", batch: int = BATCH) -> PlanWriter:
    return PlanWriter(store, KEYS, name, batch=batch)


def plan_in(store: MemoryStore) -> PlanValue | None:
    kv = store.get(KEYS.plan)
    return PlanValue.from_json(kv.value) if kv else None


def ranks_in(store: MemoryStore, attempt: str) -> dict[str, RankValue]:
    start = KEYS.rank(attempt, "")
    return {kv.key[len(start) :]: RankValue.from_json(kv.value) for kv in store.range(Get(KeyRange.prefix(start))).kvs}


@pytest.mark.parametrize("batch", [1, 2, 3, BATCH])
def test_a_plan_is_written_with_the_ranks_of_its_members(store: MemoryStore, batch: int) -> None:
    members = register(store, "a", "b", "c")
    revision = writer(store, batch=batch).propose(proposal(members, round_number=5), nproc=2, known=told_nothing)
    plan = plan_in(store)
    assert plan is not None
    assert (plan.round, plan.size, plan.world_size, plan.leader, plan.restart_count, plan.agent_store) == (
        5,
        3,
        6,
        "a",
        2,
        True,
    )
    assert (plan.master_addr, plan.master_port) == (members[0].value.address, members[0].value.ports[5 % 4])
    ranks = ranks_in(store, plan.attempt)
    assert {name: (rank.group_rank, rank.predecessor, rank.incarnation) for name, rank in ranks.items()} == {
        "a": (0, "", "a1"), "b": (1, "a", "b1"), "c": (2, "b", "c1"),
    }  # fmt: skip
    assert [one.name for one in ranks["b"].neighbours] == ["c", "a"]
    assert revision == store.revision


def test_a_plan_of_a_thousand_members_has_all_ranks(store: MemoryStore) -> None:
    members = register(store, *(f"m{number}" for number in range(1000)))
    writer(store).propose(proposal(members), nproc=1, known=told_nothing)
    plan = plan_in(store)
    assert plan is not None
    assert len(ranks_in(store, plan.attempt)) == plan.size == 1000


def test_two_members_are_each_others_only_neighbour(store: MemoryStore) -> None:
    writer(store).propose(proposal(register(store, "a", "b")), nproc=1, known=told_nothing)
    plan = plan_in(store)
    assert plan is not None
    ranks = ranks_in(store, plan.attempt)
    assert [[one.name for one in ranks[name].neighbours] for name in "ab"] == [["b"], ["a"]]


def test_a_single_member_has_no_neighbours(store: MemoryStore) -> None:
    writer(store).propose(proposal(register(store, "a")), nproc=1, known=told_nothing)
    plan = plan_in(store)
    assert plan is not None
    assert ranks_in(store, plan.attempt)["a"].neighbours == ()


def test_only_one_of_two_planners_writes_its_plan(store: MemoryStore) -> None:
    members = register(store, "a", "b")
    writer(store, "a.1").propose(proposal(members), nproc=1, known=told_nothing)
    with pytest.raises(PlanOutdatedError):
        writer(store, "b.1").propose(proposal(members), nproc=1, known=told_nothing)
    plan = plan_in(store)
    assert plan is not None
    assert ".a.1." in plan.attempt


def test_a_plan_with_a_member_that_left_is_rejected(store: MemoryStore) -> None:
    members = register(store, "a", "b")
    gone = dataclasses.replace(members[1], create_revision=members[1].create_revision - 1)
    with pytest.raises(PlanOutdatedError):
        writer(store).propose(proposal([members[0], gone]), nproc=1, known=told_nothing)
    assert plan_in(store) is None


def test_no_plan_is_written_after_the_outcome(store: MemoryStore) -> None:
    members = register(store, "a")
    store.put(KEYS.outcome, OutcomeValue(state=OutcomeState.SUCCEEDED, reason="r").to_json())
    with pytest.raises(PlanOutdatedError):
        writer(store).propose(proposal(members), nproc=1, known=told_nothing)
    assert plan_in(store) is None


def test_ranks_of_a_failed_attempt_do_not_count_for_the_next(store: MemoryStore) -> None:
    members = register(store, "a", "b", "c")
    planner = writer(store, batch=1)
    gone = dataclasses.replace(members[2], create_revision=1)
    with pytest.raises(PlanOutdatedError):
        planner.propose(proposal([*members[:2], gone]), nproc=1, known=told_nothing)
    planner.propose(proposal(members[:1]), nproc=1, known=told_nothing)
    plan = plan_in(store)
    assert plan is not None
    assert set(ranks_in(store, plan.attempt)) == {"a"}


def test_a_new_plan_deletes_old_ranks_and_suspicions(store: MemoryStore) -> None:
    members = register(store, "a")
    planner, after = writer(store), 0
    for round_number in (1, 2, 3, 4):
        store.put(KEYS.suspicion(round_number - 1, "x", "y"), "{}")
        planner.propose(proposal(members, round_number=round_number, after=after), nproc=1, known=told_nothing)
        kv = store.get(KEYS.plan)
        assert kv is not None
        after = kv.mod_revision
    kept = {kv.key.split("/")[4][:8] for kv in store.range(Get(KeyRange.prefix(KEYS.ranks))).kvs}
    assert kept == {"00000003", "00000004"}, "a slow member still finds the ranks of the previous plan"
    assert store.range(Get(KeyRange.prefix(KEYS.suspects))).kvs == ()


def restored(store: MemoryStore, batch: int = 1) -> tuple[PlanWriter, PlanValue, RankValue]:
    """A plan whose store has lost everything."""
    planner = writer(store, batch=batch)
    planner.propose(proposal(register(store, "a", "b", "c")), nproc=1, known=told_nothing)
    plan = plan_in(store)
    assert plan is not None
    rank = ranks_in(store, plan.attempt)["a"]
    store.txn([], [Delete(KeyRange.prefix(KEYS.root))])
    return planner, plan, rank


def assignment(members: Sequence[Member], size: int, world: int = 1, gone: tuple[str, ...] = ()) -> AssignReplicas:
    parts = [tuple(members[start : start + size]) for start in range(0, len(members), size)]
    return AssignReplicas(
        parts=tuple(
            (part, tuple(ReplicaValue(index=number, world=world, incarnation="a1", members=("x",)) for _ in part))
            for number, part in enumerate(parts)
        ),
        known={}, gone=gone, expected_mod_revision=0, reason="why",
    )  # fmt: skip


@pytest.mark.parametrize("count", range(BATCH - 1, MAX_OPERATIONS + 2))
def test_a_plan_of_any_size_fits_into_transactions(store: MemoryStore, count: int) -> None:
    members = register(store, *(f"m{number:03}" for number in range(count)))
    kept = KEYS.failure(1, "m000")
    writer(store).propose(proposal(members, round_number=2), 1, told_nothing, kept_failure=kept)
    plan = plan_in(store)
    assert plan is not None
    assert len(ranks_in(store, plan.attempt)) == count


def test_the_largest_replica_fits_into_a_transaction_while_others_are_gone(store: MemoryStore) -> None:
    gone = tuple(f"gone-{number}" for number in range(MAX_REMOVED))
    for name in gone:
        store.put(KEYS.replica(name), "{}")
    members = register(store, *(f"m{number:03}" for number in range(MAX_REPLICA_SIZE)))
    writer(store).assign(assignment(members, MAX_REPLICA_SIZE, gone=gone), told_nothing)
    kvs = store.range(Get(KeyRange.prefix(KEYS.replicas))).kvs
    assert [kv.key for kv in kvs] == [KEYS.replica(member.name) for member in members]


@pytest.mark.parametrize("batch", [1, 5, BATCH])
def test_every_member_is_told_its_replica(store: MemoryStore, batch: int) -> None:
    members = register(store, "a", "b", "c", "d", "e", "f")
    store.put(KEYS.replica("z"), "{}")
    key, revision = writer(store, batch=batch).assign(assignment(members, 2, gone=("z",)), told_nothing)
    kvs = {kv.key: kv for kv in store.range(Get(KeyRange.prefix(KEYS.replicas))).kvs}
    assert [ReplicaValue.from_json(kv.value).index for kv in kvs.values()] == [0, 0, 1, 1, 2, 2]
    assert kvs[key].mod_revision == revision
    for first, second in ("ab", "cd", "ef"):  # a replica is never told in parts
        assert kvs[KEYS.replica(first)].mod_revision == kvs[KEYS.replica(second)].mod_revision


def test_only_one_of_two_planners_puts_a_member_into_a_replica(store: MemoryStore) -> None:
    members = register(store, "a", "b", "c")
    writer(store, "a.1").assign(assignment(members[:2], 2), told_nothing)
    with pytest.raises(PlanOutdatedError):
        writer(store, "b.1").assign(assignment(members[1:], 2, world=2), told_nothing)
    assert store.get(KEYS.replica("c")) is None


def test_no_plan_contains_a_member_that_another_planner_puts_into_another_replica(store: MemoryStore) -> None:
    members = register(store, "a", "b")
    in_replicas = dataclasses.replace(proposal(members), replica_size=2)
    writer(store, "a.1").assign(assignment(members, 2), told_nothing)
    with pytest.raises(PlanOutdatedError):
        writer(store, "b.1").propose(in_replicas, nproc=1, known=told_nothing)
    assert plan_in(store) is None


def test_a_plan_of_replicas_of_any_size_fits_into_transactions(store: MemoryStore) -> None:
    members = register(store, *(f"m{number:03}" for number in range(MAX_OPERATIONS + 1)))
    in_replicas = dataclasses.replace(proposal(members), replica_size=1)
    writer(store).propose(in_replicas, nproc=1, known=told_nothing)
    plan = plan_in(store)
    assert plan is not None
    assert len(ranks_in(store, plan.attempt)) == len(members)


def test_a_lost_plan_is_restored_unchanged(store: MemoryStore) -> None:
    planner, plan, rank = restored(store)
    planner.restore(plan, "a", rank)
    assert plan_in(store) == plan
    assert set(ranks_in(store, plan.attempt)) == {"a", "b", "c"}


def test_a_member_that_knows_only_its_own_rank_restores_that_rank(store: MemoryStore) -> None:
    _, plan, rank = restored(store)
    writer(store, "other").restore(plan, "a", rank)
    assert plan_in(store) == plan
    assert ranks_in(store, plan.attempt) == {"a": rank}


def test_a_restore_never_overwrites_a_newer_plan(store: MemoryStore) -> None:
    planner, plan, rank = restored(store)
    writer(store, "b.1").propose(proposal(register(store, "b"), round_number=9), nproc=1, known=told_nothing)
    with pytest.raises(PlanOutdatedError):
        planner.restore(plan, "a", rank)
    current = plan_in(store)
    assert current is not None
    assert current.round == 9


def test_the_outcome_is_written_once_and_only_for_the_current_plan(store: MemoryStore) -> None:
    planner = writer(store)
    revision = planner.propose(proposal(register(store, "a")), nproc=1, known=told_nothing)
    succeeded = OutcomeValue(state=OutcomeState.SUCCEEDED, reason="r")
    outdated = PublishOutcome(outcome=succeeded, expected_mod_revision=revision - 1, reason="r")
    with pytest.raises(PlanOutdatedError):
        planner.publish_outcome(outdated)
    assert store.get(KEYS.outcome) is None
    planner.publish_outcome(PublishOutcome(outcome=succeeded, expected_mod_revision=revision, reason="r"))
    failed = OutcomeValue(state=OutcomeState.FAILED, reason="r")
    with pytest.raises(PlanOutdatedError):
        planner.publish_outcome(PublishOutcome(outcome=failed, expected_mod_revision=revision, reason="r"))
    kv = store.get(KEYS.outcome)
    assert kv is not None
    assert OutcomeValue.from_json(kv.value).state is OutcomeState.SUCCEEDED


# -- failures


def fail(store: MemoryStore, round_number: int, name: str, *, reason: str = PEER_LOST) -> str:
    value = for_the_store(
        FailureValue(
            member=name,
            round=round_number,
            rank=0,
            local_rank=0,
            exit_code=1,
            reason=reason,
            message="m" * 200,
            traceback="t" * 4096,
            time=round_number,
        )
    )
    store.put(KEYS.failure(round_number, name), value.to_json())
    return KEYS.failure(round_number, name)


def failures_in(store: MemoryStore) -> list[str]:
    return [kv.key for kv in store.range(Get(KeyRange.prefix(KEYS.failures))).kvs]


def test_a_new_plan_deletes_earlier_failures_except_the_first(store: MemoryStore) -> None:
    """The first failure of the last round is kept for an operator that was down."""
    members = register(store, "a", "b", "c")
    planner = writer(store)
    revision = planner.propose(proposal(members), nproc=1, known=told_nothing)
    for name in "abc":
        fail(store, 1, name)
    late = fail(store, 2, "a")
    planner.propose(
        proposal(members, round_number=2, after=revision),
        nproc=1,
        known=told_nothing,
        kept_failure=KEYS.failure(1, "b"),
    )
    assert failures_in(store) == [KEYS.failure(1, "b"), late]
    plan = store.get(KEYS.plan)
    assert plan is not None
    planner.propose(proposal(members, round_number=3, after=plan.mod_revision), nproc=1, known=told_nothing)
    assert failures_in(store) == []


def test_failures_of_a_large_group_take_a_few_megabytes_at_most(store: MemoryStore) -> None:
    """Full tracebacks of 3,000 members would take 684 MB, and etcd rejects writes at 2 GB."""
    members = register(store, *(f"m{number:04d}" for number in range(300)))
    planner, revision, most = writer(store), 0, 0
    for round_number in range(1, 51):
        kept = KEYS.failure(round_number - 1, members[0].name)
        revision = planner.propose(
            proposal(members, round_number=round_number, after=revision), nproc=1, known=told_nothing, kept_failure=kept
        )
        for member in members:
            fail(store, round_number, member.name, reason="ApplicationError" if member is members[0] else PEER_LOST)
        most = max(most, sum(len(kv.value) for kv in store.range(Get(KeyRange.prefix(KEYS.failures))).kvs))
    assert len(failures_in(store)) <= 301
    assert most * 10 < 4_000_000 * 3, "for 3,000 members"


def test_only_a_failure_that_is_a_cause_keeps_its_full_traceback() -> None:
    cause = FailureValue(
        member="a",
        round=1,
        rank=0,
        local_rank=0,
        exit_code=1,
        reason="ApplicationError",
        message="m",
        traceback="t" * 4096,
    )
    assert for_the_store(cause) is cause
    assert len(for_the_store(dataclasses.replace(cause, reason=PEER_LOST)).traceback) == CONSEQUENCE_BYTES
