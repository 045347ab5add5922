from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.kube.cache import ObjectCache
from elasticjob_operator.names import NamespacedName

JOB = ("ml", "digits")


class Bench:
    def __init__(self) -> None:
        self.requeued: list[NamespacedName] = []
        self.store: ObjectCache[str] = ObjectCache(lambda item: item["value"], _group, self.requeued.append)

    def values(self, group: NamespacedName = JOB) -> list[str]:
        return sorted(self.store.of(group))


def _group(each: dict[str, Any]) -> NamespacedName | None:
    return (each["metadata"]["namespace"], each["job"]) if each.get("job") else None


def pod(name: str, version: int, value: str = "x", job: str = "digits", namespace: str = "ml") -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": name, "resourceVersion": str(version)},
        "value": value,
        "job": job,
    }


def replace(store: ObjectCache[str], bodies: list[dict[str, Any]], version: int, namespace: str = "") -> None:
    """By a list of one page."""
    replacement = store.replacement(namespace)
    replacement.add(bodies)
    replacement.finish(version)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_only_changes_of_the_cached_value_requeue_a_job(bench: Bench) -> None:
    bench.store.put(pod("a", 1, "x"))
    bench.store.put(pod("a", 2, "x"))
    bench.store.put(pod("a", 3, "y"))
    assert bench.requeued == [JOB, JOB]


def test_an_older_version_is_ignored(bench: Bench) -> None:
    bench.store.put(pod("a", 5, "new"))
    bench.store.put(pod("a", 4, "old"))
    assert bench.values() == ["new"]


def test_a_late_deletion_does_not_remove_the_successor(bench: Bench) -> None:
    bench.store.put(pod("a", 10, "successor"))
    bench.store.remove(pod("a", 9))
    assert bench.values() == ["successor"]
    bench.store.remove(pod("a", 11))
    assert bench.values() == []


def test_a_late_event_does_not_bring_back_a_deleted_object(bench: Bench) -> None:
    bench.store.put(pod("a", 5))
    bench.store.remove(pod("a", 7))
    bench.store.put(pod("a", 6, "late"))
    assert bench.values() == []
    bench.store.put(pod("a", 8, "successor"))
    assert bench.values() == ["successor"]


def test_a_deletion_before_the_first_event_is_remembered(bench: Bench) -> None:
    """The watch is ahead of the answer to our own write."""
    bench.store.remove(pod("a", 7))
    bench.store.put(pod("a", 6, "answer"))
    assert bench.values() == []


def test_a_list_removes_what_was_deleted_while_the_watch_was_down(bench: Bench) -> None:
    bench.store.put(pod("gone", 1))
    bench.store.put(pod("kept", 2))
    bench.requeued.clear()
    replace(bench.store, [pod("kept", 2), pod("new", 5)], version=6)
    assert len(bench.store) == 2
    assert bench.store.get(("ml", "gone")) is None
    assert bench.requeued == [JOB, JOB], "one for the new object, one for the deleted one"


def test_a_list_keeps_our_own_later_writes(bench: Bench) -> None:
    bench.store.put(pod("just-created", 9))
    replace(bench.store, [], version=8)
    assert len(bench.store) == 1


def test_a_list_of_one_namespace_keeps_the_others(bench: Bench) -> None:
    bench.store.put(pod("a", 1, namespace="other"))
    bench.store.put(pod("b", 1))
    replace(bench.store, [], version=5, namespace="ml")
    assert len(bench.store) == 1


def test_a_changed_label_moves_it_between_jobs(bench: Bench) -> None:
    bench.store.put(pod("a", 1))
    bench.requeued.clear()
    bench.store.put(pod("a", 2, "y", job="faces"))
    assert bench.values() == []
    assert bench.values(("ml", "faces")) == ["y"]
    assert set(bench.requeued) == {JOB, ("ml", "faces")}


def test_by_name_is_an_immutable_snapshot_until_something_changes(bench: Bench) -> None:
    bench.store.put(pod("a", 1))
    first = bench.store.by_name
    bench.store.put(pod("a", 2))
    assert bench.store.by_name is first, "the same value is no news"
    bench.store.put(pod("a", 3, "y"))
    bench.store.put(pod("b", 4))
    assert bench.store.by_name == {"a": "y", "b": "x"}
    bench.store.remove(pod("b", 5))
    assert bench.store.by_name == {"a": "y"}
    assert first == {"a": "x"}


def test_groups_are_found_by_index_value() -> None:
    store: ObjectCache[str] = ObjectCache(lambda item: item["value"], _group, lambda _: None, index=lambda value: value)
    store.put(pod("a", 1, "node-1"))
    store.put(pod("b", 2, "node-1"))
    store.put(pod("c", 3, "node-1", job="faces"))
    store.put(pod("d", 4, ""))
    assert sorted(store.groups_at("node-1")) == [JOB, ("ml", "faces")]
    store.put(pod("a", 5, "node-2"))
    assert sorted(store.groups_at("node-1")) == [JOB, ("ml", "faces")], "b is there still"
    store.remove(pod("b", 6))
    assert (store.groups_at("node-1"), store.groups_at("node-2")) == ([("ml", "faces")], [JOB])
    store.put(pod("c", 7, "node-1", job="digits"))
    assert store.groups_at("node-1") == [JOB]
    replace(store, [], version=8)
    assert (store.groups_at("node-1"), store.groups_at("node-2"), store.groups_at("")) == ([], [], [])
    assert (store._places, store._groups) == ({}, {}), "nothing is kept of what is gone"


def test_a_paged_list_applies_each_page_and_removes_the_rest_at_its_end(bench: Bench) -> None:
    bench.store.put(pod("gone", 1))
    bench.store.put(pod("kept", 2))
    replacement = bench.store.replacement()
    replacement.add([pod("kept", 2), pod("new", 5)])
    assert len(bench.store) == 3
    bench.store.put(pod("our-own", 9))
    replacement.add([pod("last", 6)])
    replacement.finish(version=6)
    assert sorted(name for _, name in bench.store._objects) == ["kept", "last", "new", "our-own"]


def test_an_object_that_cannot_be_read_is_left_out(bench: Bench) -> None:
    """Anyone may have made it."""
    bench.store.put(pod("kept", 1))
    bench.store.put({"metadata": pod("hostile", 2)["metadata"]})
    bench.store.put(pod("after", 3))
    assert {name for _, name in bench.store._objects} == {"kept", "after"}


def test_an_object_that_can_be_read_no_longer_does_not_stay_as_it_was(bench: Bench) -> None:
    bench.store.put(pod("a", 1))
    bench.requeued.clear()
    bench.store.put({"metadata": pod("a", 3)["metadata"], "job": "digits"})
    assert (bench.values(), bench.requeued) == ([], [JOB])
    bench.store.put(pod("a", 2, "late"))
    assert bench.values() == []
    bench.store.put(pod("a", 4, "readable"))
    assert bench.values() == ["readable"]
