"""When a run id that was used before starts a new run."""

from __future__ import annotations

import pytest
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


KEPT = {
    "it goes on": (KEYS.member("a"), KEYS.plan),
    "it has ended, and has members": (KEYS.member("a"), KEYS.outcome),
    "it has ended, and is an operator's": (KEYS.outcome, KEYS.spec),
}


@pytest.mark.parametrize("keys", KEPT.values(), ids=KEPT)
def test_any_other_run_is_kept(keys: tuple[str, ...]) -> None:
    kept = store(*keys)
    assert not clear_ended_run(kept, KEYS)
    assert left(kept) == list(keys)


def test_a_job_under_the_prefix_of_the_ended_one_keeps_its_keys() -> None:
    inner = Keys(KEYS.root, "job1")
    ours = (KEYS.outcome, KEYS.plan, KEYS.progress, KEYS.failure(1, "a"), KEYS.rank("1.a", "a"))
    both = store(*ours, inner.plan, inner.member("w0"))
    assert clear_ended_run(both, KEYS)
    assert left(both) == [inner.member("w0"), inner.plan]
