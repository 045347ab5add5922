from __future__ import annotations

import collections
import tracemalloc
from typing import Any

import pytest
from elasticjob_api import InvalidJobError
from elasticjob_operator.controller import job_cache as module
from elasticjob_operator.controller.job_cache import JobCache

from tests.unit.operator.builders import TEMPLATE

KEY = ("ml", "digits")


def body(version: int, uid: str = "u", replicas: Any = 1) -> dict[str, Any]:
    metadata = {"namespace": "ml", "name": "digits", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"workers": {"replicas": replicas, "template": TEMPLATE}}}


def test_an_event_older_than_our_own_write_is_ignored() -> None:
    """The response to a status write is ahead of the watch: the old status must not reappear."""
    jobs = JobCache()
    assert jobs.put(body(5))
    assert not jobs.put(body(4, replicas=9))
    assert not jobs.put(body(5))
    job = jobs.get(KEY)
    assert job is not None
    assert job.replicas == 1
    assert jobs.put(body(6, replicas=2))
    assert jobs.version(KEY) == 6


def test_a_new_job_of_the_same_name_replaces_the_old_one() -> None:
    jobs = JobCache()
    jobs.put(body(5, "old"))
    assert jobs.put(body(9, "new"))
    assert not jobs.remove(KEY, "old"), "the late DELETED of the old one"
    assert jobs.get(KEY) is not None
    assert jobs.remove(KEY, "new")
    assert jobs.get(KEY) is None
    assert list(jobs) == []


def test_an_invalid_job_is_reported_with_the_field() -> None:
    jobs = JobCache()
    jobs.put(body(1, replicas="many"))
    with pytest.raises(InvalidJobError, match=r"spec\.workers\.replicas"):
        jobs.get(KEY)


def test_the_time_of_all_jobs_is_summed_by_what_it_was_spent_on() -> None:
    jobs = JobCache()
    jobs.put({**body(1), "status": {"goodput": {"productive": 40, "waiting": 2, "percent": 95}}})
    assert +jobs.seconds == {"productive": 40, "waiting": 2}
    jobs.put({**body(2), "status": {"goodput": {"productive": 50}}})
    assert +jobs.seconds == {"productive": 50}
    jobs.remove(KEY, "u")
    assert not +jobs.seconds


def test_running_jobs_are_counted_by_how_low_their_goodput_is() -> None:
    jobs = JobCache()

    def goodput(version: int, percent: int | None, seconds: int = 7200, ended: str = "") -> dict[str, int]:
        conditions = [{"type": ended, "status": "True"}] if ended else []
        status = {"goodput": {"percent": percent, "waiting": seconds, "suspended": 90_000}, "conditions": conditions}
        jobs.put({**body(version), "status": status})
        return dict(+jobs.below)

    assert goodput(1, 60) == {"75": 1, "90": 1}
    assert goodput(2, 10) == {"25": 1, "50": 1, "75": 1, "90": 1}
    assert goodput(3, 50) == {"75": 1, "90": 1}
    assert goodput(4, 10, seconds=600) == {}, "it has just started"
    assert goodput(5, None) == {}, "its steps are not known"
    assert goodput(6, 10, ended="Failed") == {}
    assert goodput(7, 10) != {}
    jobs.remove(KEY, "u")
    assert not +jobs.below


def test_conditions_are_counted_over_all_jobs() -> None:
    def of(name: str, version: int, uid: str = "u", **conditions: str) -> dict[str, Any]:
        each = [{"type": type_, "status": status} for type_, status in conditions.items()]
        return {
            "metadata": {"namespace": "ml", "name": name, "uid": uid, "resourceVersion": str(version)},
            "status": {"conditions": each},
        }

    jobs = JobCache()
    jobs.put(of("a", 1))
    jobs.put(of("a", 2, Running="True", Failed="False"))
    jobs.put(of("b", 3, Running="True"))
    assert (jobs.conditions["Running"], jobs.conditions["Failed"]) == (2, 0)
    jobs.put(of("a", 1, Failed="True"))
    jobs.put(of("a", 4, Running="False", Failed="True"))
    assert (jobs.conditions["Running"], jobs.conditions["Failed"]) == (1, 1), "an old state counts for nothing"
    jobs.put(of("b", 5, uid="younger"))
    jobs.remove(("ml", "a"), "u")
    jobs.remove(("ml", "a"), "u")
    assert not any(jobs.conditions.values())


def test_the_runs_of_each_etcd_tier_are_counted_until_they_end() -> None:
    jobs = JobCache()

    def put(version: int, tier: str, *conditions: str) -> collections.Counter[str]:
        found = body(version)
        found["status"] = {
            "rendezvous": {"id": "u-1", "tier": tier},
            "conditions": [{"type": condition, "status": "True"} for condition in conditions],
        }
        jobs.put(found)
        return +jobs.runs_in_tiers

    assert not put(1, "")
    assert put(2, "t0") == {"t0": 1}
    assert not put(3, "t0", "Suspended"), "its keys are gone, and its next run chooses again"
    assert put(4, "t1", "Running") == {"t1": 1}
    assert not put(5, "t1", "Succeeded")
    assert put(6, "t1") == {"t1": 1}
    jobs.remove(KEY, "u")
    assert not +jobs.runs_in_tiers


def test_only_the_jobs_of_shards_that_this_operator_leads_are_counted() -> None:
    led = {1}
    jobs = JobCache(shard_of=lambda key: int(key[1]), led=lambda: led)
    for name in ("0", "1", "1"):
        metadata = {"namespace": "ml", "name": name, "uid": name, "resourceVersion": "1"}
        jobs.put({"metadata": metadata, "status": {"conditions": [{"type": "Running", "status": "True"}]}})
    assert (jobs.conditions["Running"], jobs.count(0), jobs.count(1), jobs.count(2)) == (1, 1, 1, 0)
    led.add(0)
    assert jobs.conditions["Running"] == 2


def test_idle_jobs_are_kept_as_json_and_parsed_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARSED", 3_000)
    jobs = JobCache()
    for number in range(4):
        large = body(number + 1)
        annotations = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 10000, "kept": "yes"}
        large["metadata"] |= {
            "name": f"job-{number}",
            "managedFields": [{"manager": "kubectl"}],
            "annotations": annotations,
        }
        jobs.put(large)
    parsed = [jobs.get(("ml", f"job-{number}")) for number in range(4)]
    assert 1 <= len(jobs._parsed) <= 3
    assert jobs.get(("ml", "job-3")) is parsed[3], "as it was parsed"
    assert jobs.get(("ml", "job-0")) == parsed[0], "once more, the same"
    kept = jobs.body(("ml", "job-0"))
    assert kept is not None
    assert kept["metadata"]["annotations"] == {"kept": "yes"}
    assert "managedFields" not in kept["metadata"]
    assert len(jobs._known["ml", "job-0"].body) < 500


def test_an_idle_job_takes_little_more_than_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five thousand of them, parsed, took more than the operator may have."""
    monkeypatch.setattr(module, "PARSED", 0)
    environment = [{"name": f"SETTING_{number}", "value": "of the environment"} for number in range(40)]
    jobs, count = JobCache(), 200
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            large = body(number + 1)
            large["metadata"]["name"] = f"job-{number}"
            large["spec"]["workers"]["template"] = {
                "spec": {"containers": [{"name": "trainer", "image": "x", "env": environment}]}
            }
            jobs.put(large)
            jobs.get(("ml", f"job-{number}"))
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each < len(jobs._known["ml", "job-0"].body) + 1500


def test_a_job_that_is_too_deep_is_invalid_and_its_status_is_kept() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = {"a": deep}
    jobs = JobCache()
    large = body(1)
    large["spec"]["zz"] = deep
    jobs.put({**large, "status": {"round": 3}})
    with pytest.raises(InvalidJobError, match=r"spec\.zz.*64 levels"):
        jobs.get(KEY)
    kept = jobs.body(KEY)
    assert kept is not None
    assert kept["status"] == {"round": 3}
    jobs.put(body(2))
    assert jobs.get(KEY) is not None, "once it is mended"


def test_the_namespace_with_the_most_bytes_gives_way_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 50_000)
    monkeypatch.setattr(module, "LARGE", 3_000)
    jobs = JobCache()
    jobs.put(body(1))
    for number in range(40):
        large = body(number + 2)
        large["metadata"] |= {"namespace": "hostile", "name": f"job-{number}"}
        large["spec"]["zz"] = "x" * (4000 - number)
        jobs.put(large)
    assert jobs._bytes.total() <= 50_000
    assert jobs.get(KEY) is not None
    with pytest.raises(InvalidJobError, match="the ElasticJobs of namespace hostile are too large"):
        jobs.get(("hostile", "job-0"))
    for number in range(40):
        jobs.remove(("hostile", f"job-{number}"), "u")
    assert list(jobs._bytes) == ["ml"]


def test_jobs_of_an_ordinary_size_are_kept_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 50_000)
    jobs = JobCache()
    for number in range(100):
        each = body(number + 1)
        each["metadata"] |= {"name": f"job-{number}", "annotations": {"note": "x" * 1000}}
        jobs.put(each)
    assert all(jobs.get(key) is not None for key in jobs)


def test_parsed_jobs_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobCache()
    for number in range(10):
        each = body(number + 1)
        each["metadata"]["name"] = f"job-{number}"
        jobs.put(each)
    monkeypatch.setattr(module, "PARSED", 3 * jobs._known["ml", "job-9"].parsed)
    for number in range(10):
        jobs.get(("ml", f"job-{number}"))
    assert list(jobs._parsed) == [("ml", f"job-{number}") for number in (7, 8, 9)]
    jobs.put(body(20))
    for number in range(10):
        jobs.remove(("ml", f"job-{number}"), "u")
    assert jobs._parsed_bytes == 0
