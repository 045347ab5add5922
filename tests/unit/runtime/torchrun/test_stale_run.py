"""When a run id that was used before starts a new run."""

from __future__ import annotations

from elasticjob_runtime.contract import Keys
from elasticjob_runtime.etcd.interface import Get, KeyRange
from elasticjob_runtime.torchrun.stale_run import clear_ended_run

from hack.embedded_etcd.memory import MemoryStore

KEYS = Keys("/jobs", "one")


def store(*keys: str) -> MemoryStore:
    store = MemoryStore()
    for key in (*keys, Keys("/jobs", "one-more").outcome):
        store.put(key, "{}")
    return store


def left(store: MemoryStore) -> list[str]:
    return [kv.key for kv in store.range(Get(KeyRange.prefix(KEYS.root))).kvs]


def test_the_run_id_of_an_ended_job_can_be_used_again() -> None:
    ended = store(KEYS.outcome, KEYS.plan, KEYS.last_joined)
    assert clear_ended_run(ended, KEYS)
    assert left(ended) == []
    assert ended.get(Keys("/jobs", "one-more").outcome), "the key of another job"
    assert not clear_ended_run(ended, KEYS), "there is nothing left to clear"


def test_a_running_job_is_left_alone() -> None:
    going = store(KEYS.plan, KEYS.member("a"))
    assert not clear_ended_run(going, KEYS)
    assert left(going) == [KEYS.member("a"), KEYS.plan]


def test_an_ended_run_is_kept_while_it_has_members() -> None:
    assert not clear_ended_run(store(KEYS.outcome, KEYS.member("a")), KEYS)


def test_an_ended_run_of_an_operator_is_kept() -> None:
    assert not clear_ended_run(store(KEYS.outcome, KEYS.spec), KEYS)


def test_a_job_under_the_prefix_of_the_ended_one_keeps_its_keys() -> None:
    inner = Keys(KEYS.root, "job1")
    both = store(
        KEYS.outcome,
        KEYS.plan,
        KEYS.progress,
        KEYS.failure(1, "a"),
        KEYS.rank("1.a", "a"),
        inner.plan,
        inner.member("w0"),
    )
    assert clear_ended_run(both, KEYS)
    assert left(both) == [inner.member("w0"), inner.plan]


def test_every_key_of_a_run_is_deleted() -> None:
    named = {
        getattr(KEYS, name)
        for name, kind in vars(Keys).items()
        if isinstance(kind, property) and name not in ("root", "single", "folders")
    }
    assert named == {*KEYS.single, *KEYS.folders}
