"""How a member registers, finds its predecessor, and leaves."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import MemberState, OutcomeState, OutcomeValue, SecretValue, SpecValue
from elasticjob_runtime.etcd.interface import Delete, KeyRange, Unavailable
from elasticjob_runtime.membership.actions import PublishState, Register, Subscribe
from elasticjob_runtime.membership.view import Role
from elasticjob_runtime.rendezvous.registration import RECENT

from tests.unit.runtime.rendezvous.sessions import KEYS, CoreDriver, FlakyStore, put_plan, value_in

pytestmark = pytest.mark.usefixtures("quiet")


def test_a_registered_member_is_in_the_view_and_holds_a_lease(core: CoreDriver) -> None:
    assert core.run(Register(state=MemberState.WARMING, round=3, stores=True, reason="r")) is None
    mine = core.view.members["a"].value
    assert core.view.registered
    assert (mine.state, mine.round, mine.stores) == (MemberState.WARMING, 3, True)
    assert core.core.lease_expires_at is not None


def test_a_member_never_writes_over_an_agent_that_has_taken_its_name(store: FlakyStore) -> None:
    first, second = CoreDriver(store), CoreDriver(store)
    first.join(Role.FOLLOWER)
    second.join(Role.FOLLOWER)
    theirs = store.get(KEYS.member("a"))
    error = first.run(PublishState(state=MemberState.LEAVING, round=1, stores=False, reason="r"))
    assert "another agent has registered as a" in str(error)
    assert store.get(KEYS.member("a")) == theirs


def test_the_predecessor_is_the_member_that_registered_just_before(store: FlakyStore) -> None:
    for name, predecessor in (("a", ""), ("b", "a"), ("c", "b")):
        core = CoreDriver(store, name)
        core.join(Role.FOLLOWER)
        assert core.view.predecessor == predecessor
        assert core.view.first_member is None, "each is compatible with its predecessor, so all are with the first"
    assert set(core.view.members) == {"b", "c"}, "a follower watches no others"


def test_a_member_incompatible_with_its_predecessor_learns_the_first_member(store: FlakyStore) -> None:
    for name, nproc in (("a", 2), ("b", 1), ("c", 2)):
        core = CoreDriver(store, name, nproc=nproc)
        core.join(Role.FOLLOWER)
        assert core.view.first_member is None or core.view.first_member.incarnation == "a1"
    assert (core.view.predecessor, core.view.first_member is not None) == ("b", True)


def test_a_predecessor_that_left_is_noticed_whenever_it_left(store: FlakyStore) -> None:
    """If it leaves after the member registered, the watch reports it; if it left long before, its own predecessor is
    looked up."""
    for name in "abc":
        core = CoreDriver(store, name)
        core.join(Role.FOLLOWER)
        if name == "b":
            core.core.leave()
    assert core.view.predecessor == "b"
    core.run_until(lambda: "b" not in core.view.members)
    core.core.leave()
    write_much(store)
    late = CoreDriver(store, "d")
    late.join(Role.FOLLOWER)
    assert late.view.predecessor == "a"


def write_much(store: FlakyStore) -> None:
    """So much that no watch begins before."""
    for number in range(RECENT + 1):
        store.put(KEYS.progress, str(number))


def test_a_restarted_agent_is_not_its_own_predecessor(store: FlakyStore) -> None:
    for name, incarnation in (("a", "1"), ("b", "1"), ("b", "2")):
        core = CoreDriver(store, name, incarnation)
        core.join(Role.FOLLOWER)
    assert core.view.predecessor == "a"


def test_changes_since_the_predecessor_registered_are_seen(store: FlakyStore, joined: CoreDriver) -> None:
    """Each change since then is seen once, and nothing is repeated."""
    second = CoreDriver(store, "b")
    assert second.run(Register(reason="r")) is None
    assert joined.run(PublishState(state=MemberState.SUCCEEDED, round=1, reason="r")) is None
    put_plan(store)
    assert second.run(Subscribe(role=Role.FOLLOWER, reason="r")) is None
    second.run_until(lambda: second.view.members["a"].value.state is MemberState.SUCCEEDED)
    second.run_until(lambda: second.view.plan is not None)
    joined.core.leave()
    second.run_until(lambda: "a" not in second.view.members)


@pytest.mark.usefixtures("joined")
def test_joining_takes_one_call_besides_the_lease_and_the_watch(store: FlakyStore) -> None:
    """When a thousand agents start together, each call of one delays the others."""
    second = CoreDriver(store, "b")
    before = store.calls
    second.join(Role.FOLLOWER)
    assert store.calls - before == 1
    assert second.view.members["a"].value.incarnation == "a1", "as last_joined names it"


@pytest.mark.usefixtures("joined")
def test_a_predecessor_that_registered_long_ago_is_read_without_history(store: FlakyStore) -> None:
    """A watch must not replay a day of changes of a running job."""
    write_much(store)
    store.watching_from.clear()
    second = CoreDriver(store, "b")
    second.join(Role.FOLLOWER)
    assert (second.view.predecessor, set(second.view.members)) == ("a", {"a", "b"})
    assert store.watching_from == [second.view.members["b"].create_revision + 1]


def test_an_agent_sees_that_another_of_its_name_replaced_it(store: FlakyStore, joined: CoreDriver) -> None:
    new = CoreDriver(store, "a", "2")
    new.join()
    joined.run_until(lambda: joined.view.replaced_by == "a2")
    assert new.view.registered


def test_a_registration_whose_answer_was_lost_does_not_count(store: FlakyStore, joined: CoreDriver) -> None:
    """The answer has the run's secret. Without it, the others would take the member for lost."""
    joined.lose_lease()
    joined.run_until(lambda: not joined.view.registered)
    new = SecretValue(secret="12" * 32)  # of a member that registered first after the store lost its data
    store.put(KEYS.secret, new.to_json())

    store.lost_answers = 1
    assert isinstance(joined.run(Register(reason="r")), Unavailable)
    joined.run_until(lambda: "a" in joined.view.members)
    before = joined.view.registered
    assert joined.run(Register(reason="r")) is None
    assert (before, joined.view.registered) == (False, True)
    assert joined.secrets[-1] == new


def test_a_late_report_about_an_old_lease_does_not_affect_the_new_one(joined: CoreDriver) -> None:
    assert joined.run(Register(reason="again")) is None
    expires = joined.core.lease_expires_at
    joined.core._lost(1, "expired")
    joined.core.flush()
    assert joined.core.lease_expires_at == expires is not None


SUCCEEDED = OutcomeValue(state=OutcomeState.SUCCEEDED, reason="r").to_json()


@pytest.mark.parametrize("spec", [False, True], ids=["without a spec", "with a spec"])
def test_a_member_that_joins_after_the_end_sees_the_outcome_and_does_not_register(
    store: FlakyStore, core: CoreDriver, spec: bool
) -> None:
    put_plan(store)
    store.put(KEYS.outcome, SUCCEEDED)
    if spec:
        store.put(KEYS.spec, SpecValue(min=1, max=1).to_json())
    assert core.run(Register(reason="r")) is None
    assert core.view.outcome is not None
    assert not core.view.registered
    assert store.get(KEYS.member("a")) is None
    assert len(store.revoked) == 1, "its lease is revoked"
    assert core.secrets == [], "it needs none"


def test_a_member_that_lost_its_lease_as_the_job_ended_sees_the_outcome(store: FlakyStore, joined: CoreDriver) -> None:
    joined.lose_lease()
    store.put(KEYS.outcome, SUCCEEDED)
    assert joined.run(Register(round=1, reason="again")) is None
    assert joined.view.outcome is not None


def test_leaving_revokes_the_lease(store: FlakyStore, joined: CoreDriver) -> None:
    joined.core.leave()
    assert store.get(KEYS.member("a")) is None


def secret_of(store: FlakyStore) -> SecretValue:
    return value_in(store, KEYS.secret, SecretValue)


def test_the_first_member_writes_the_runs_secret_and_all_others_get_it(store: FlakyStore) -> None:
    members = [CoreDriver(store, name) for name in "abc"]
    for member in members:
        member.join(Role.FOLLOWER)
    assert {member.secrets[-1] for member in members} == {secret_of(store)}
    assert len(secret_of(store).key) == 32


@pytest.mark.usefixtures("joined")
def test_two_runs_have_different_secrets(store: FlakyStore) -> None:
    other = FlakyStore()
    CoreDriver(other).join()
    assert secret_of(store) != secret_of(other)
    other.close()


def test_a_run_keeps_its_secret_if_the_store_loses_its_data(store: FlakyStore, joined: CoreDriver) -> None:
    before = secret_of(store)
    store.txn([], [Delete(KeyRange.prefix(KEYS.root))])
    assert joined.run(Register(reason="again")) is None
    assert secret_of(store) == before


def test_a_member_takes_over_a_secret_that_another_wrote_into_an_empty_store(
    store: FlakyStore, joined: CoreDriver
) -> None:
    store.txn([], [Delete(KeyRange.prefix(KEYS.root))])
    CoreDriver(store, "joiner").join()
    assert joined.run(Register(reason="again")) is None
    assert joined.secrets[-1] == secret_of(store) != joined.secrets[0]


@pytest.mark.usefixtures("joined")
def test_a_run_whose_secret_was_deleted_gets_another_one(store: FlakyStore) -> None:
    """As the error about a damaged one says."""
    store.txn([], [Delete(KeyRange(KEYS.secret))])
    again = CoreDriver(store, "b")
    again.join(Role.FOLLOWER)
    assert again.secrets == [secret_of(store)]


def test_a_damaged_secret_is_reported_without_its_value(store: FlakyStore, core: CoreDriver) -> None:
    store.put(KEYS.secret, '{"secret": "beef"}')
    error = core.run(Register(reason="r"))
    assert "agents-secret is damaged" in str(error)
    assert "beef" not in str(error)
