"""What `doctor` says of a queue, and the place that `list` shows."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from elasticjob.decisions.queues import has_default_etcd, obstacles_of_queue, quantity, requested
from elasticjob.state import job_state
from elasticjob.views.jobs import job_table


def job(cpu: str = "2", **rendezvous: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"nvidia.com/gpu": 1}}}]
    return {
        "metadata": {"name": "digits", "namespace": "ml", "labels": {"kueue.x-k8s.io/queue-name": "team"}},
        "spec": {"workers": {"template": {"spec": {"containers": containers}}}, "rendezvous": rendezvous},
        "status": {"summary": "Queued", "conditions": [{"type": "Queued", "status": "True", "message": "no quota"}]},
    }


def queue(quotas: dict[str, Any], **spec: Any) -> dict[str, Any]:
    resources = [
        {"name": name, **({"nominalQuota": quota} if isinstance(quota, str) else quota)}
        for name, quota in quotas.items()
    ]
    return {"metadata": {"name": "all"}, "spec": {"resourceGroups": [{"flavors": [{"resources": resources}]}], **spec}}


@pytest.mark.parametrize(("text", "value"), [("250m", 0.25), ("2Gi", 2**31), (3, 3), ("1e3", 1000), ("5k", 5000)])
def test_quantities_are_those_of_kubernetes(text: object, value: float) -> None:
    assert float(quantity(text)) == value


def test_what_a_job_asks_for_has_its_own_etcd_with_it() -> None:
    found = {name: float(amount) for name, amount in requested(job(), 2).items()}
    assert found == {"cpu": 4.05, "nvidia.com/gpu": 2, "memory": 64 * 2**20}
    assert "memory" not in requested(job(endpoint="etcd:2379"), 2)


@pytest.mark.parametrize(
    ("cluster_queue", "said"),
    [
        (queue({"cpu": "5", "memory": "1Gi", "nvidia.com/gpu": "2"}), []),
        (queue({"cpu": "4", "memory": "1Gi", "nvidia.com/gpu": "2"}), ["4.05 cpu"]),
        (queue({"cpu": "5", "nvidia.com/gpu": "2"}), ["no memory"]),
        (queue({"cpu": {"nominalQuota": "1", "borrowingLimit": "4"}, "memory": "1Gi", "nvidia.com/gpu": "2"}), []),
        (queue({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"}, cohortName="all"), []),
        (queue({"cpu": "5", "memory": "1Gi", "nvidia.com/gpu": "2"}, stopPolicy="Hold"), ["stopped"]),
    ],
)
def test_job_that_its_queue_can_never_admit_is_told_why(cluster_queue: dict[str, Any], said: list[str]) -> None:
    found = [what for what, _ in obstacles_of_queue(requested(job(), 2), cluster_queue)]
    assert len(found) == len(said)
    assert all(part in what for part, what in zip(said, found, strict=True))


def test_list_shows_the_place_in_the_queue_and_what_the_job_waits_for() -> None:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    lines = job_table([job_state(job())], now, wide=True, places={("ml", "digits"): 3})
    assert "Queued (place 3)" in lines[1]
    assert "no quota" in lines[1]


SHARED = {"ELASTICJOB_RENDEZVOUS_ENDPOINT": "etcd:2379"}
TIERS = {"ELASTICJOB_ETCD_TIERS": '{"tiers": [{"name": "t0", "open": false}, {"name": "t1", "open": true}]}'}
CLOSED = {"ELASTICJOB_ETCD_TIERS": '{"tiers": [{"name": "t0", "open": false}]}'}


@pytest.mark.parametrize(
    ("kind", "settings", "counts_etcd"),
    [
        ("Auto", {"ELASTICJOB_RENDEZVOUS_ENDPOINT": ""}, True),
        ("Auto", SHARED, False),
        ("Dedicated", SHARED, True),
        ("", SHARED, False),
        ("Auto", TIERS, False),
        ("Dedicated", TIERS, True),
        ("Auto", CLOSED, True),
        ("Auto", {"ELASTICJOB_ETCD_TIERS": "of a later release"}, True),
    ],
)
def test_etcd_that_jobs_share_takes_no_quota(kind: str, settings: dict[str, str], counts_etcd: bool) -> None:
    env = [{"name": name, "value": value} for name, value in settings.items()]
    operator = {"spec": {"template": {"spec": {"containers": [{"name": "operator", "env": env}]}}}}
    body = job(**({"type": kind} if kind else {}))
    found = requested(body, 2, shared_etcd=has_default_etcd([operator]))
    assert ("memory" in found) is counts_etcd
    assert not has_default_etcd([{"spec": {}}])
