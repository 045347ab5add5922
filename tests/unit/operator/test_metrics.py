from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator import metrics
from prometheus_client import REGISTRY


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize(
    ("method", "path", "query", "verb", "resource"),
    [
        ("GET", "/api/v1/pods", {}, "list", "pods"),
        ("GET", "/api/v1/namespaces/ml/pods", {"watch": "true"}, "watch", "pods"),
        ("GET", "/api/v1/namespaces/ml/pods/a", {}, "get", "pods"),
        ("POST", "/api/v1/namespaces/ml/events", {}, "create", "events"),
        ("DELETE", "/apis/apps/v1/namespaces/ml/statefulsets/a", {}, "delete", "statefulsets"),
        (
            "PATCH",
            "/apis/elasticjob.dev/v1alpha1/namespaces/ml/elasticjobs/a/status",
            {},
            "patch",
            "elasticjobs/status",
        ),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ml/leases/a", {}, "update", "leases"),
    ],
)
def test_requests_are_counted_by_verb_and_resource(
    method: str, path: str, query: dict[str, str], verb: str, resource: str
) -> None:
    labels = {"verb": verb, "resource": resource, "code": "418"}
    before = value("elasticjob_api_requests_total", **labels)
    metrics.count_request(method, path, query, 418)
    assert value("elasticjob_api_requests_total", **labels) == before + 1


def test_only_successfully_created_pods_are_counted() -> None:
    before = value("elasticjob_pods_created_total")
    path = "/api/v1/namespaces/ml/pods"
    metrics.count_request("POST", path, {}, 201)
    metrics.count_request("POST", path, {"dryRun": "All"}, 201)
    metrics.count_request("POST", path, {}, 409)
    assert value("elasticjob_pods_created_total") == before + 1


def job(uid: str = "u", **causes: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "status": {"restarts": {"total": sum(causes.values()), "byCause": causes}}}


def test_restarts_are_counted_once_by_cause() -> None:
    seen, before = metrics.Restarts(), value("elasticjob_restarts_total", cause="OutOfMemory")
    seen.see(job(OutOfMemory=3))
    assert value("elasticjob_restarts_total", cause="OutOfMemory") == before, "from before this process began"
    for _ in range(2):
        seen.see(job(OutOfMemory=5))
    seen.see(job(OutOfMemory=4))
    seen.see(job(OutOfMemory=5))
    assert value("elasticjob_restarts_total", cause="OutOfMemory") == before + 2
    seen.forget(job(OutOfMemory=5))
    seen.see({"metadata": {"uid": "v"}})
    evicted = value("elasticjob_restarts_total", cause="Evicted")
    seen.see(job("v", Evicted=1))
    assert value("elasticjob_restarts_total", cause="Evicted") == evicted + 1


def test_two_restarts_in_one_status_keep_their_causes() -> None:
    """A status is written once a second."""
    seen = metrics.Restarts()
    before = [value("elasticjob_restarts_total", cause=cause) for cause in ("Signal", "Hang")]
    seen.see(job(Signal=1))
    seen.see(job(Signal=2, Hang=1))
    assert [value("elasticjob_restarts_total", cause=cause) for cause in ("Signal", "Hang")] == [
        item + 1 for item in before
    ]


def test_causes_that_scripts_name_are_counted_together_and_within_limits() -> None:
    """Each value of a label takes memory of the operator and of Prometheus forever."""
    seen, before = metrics.Restarts(), value("elasticjob_restarts_total", cause="Other")
    seen.see(job(Signal=0))
    seen.see(job(MyOwn1=1, MyOwn2=2_000_000_000))
    assert value("elasticjob_restarts_total", cause="Other") == before + 1 + metrics.MOST_RESTARTS
    assert REGISTRY.get_sample_value("elasticjob_restarts_total", {"cause": "MyOwn1"}) is None


def test_jobs_are_counted_by_condition() -> None:
    stop = metrics.count_jobs(lambda: {"Running": 2, "Failed": 0}, lambda: {"productive": 40}, lambda: {"50": 3})
    assert value("elasticjob_jobs", condition="Running") == 2
    assert value("elasticjob_jobs", condition="Failed") == 0
    assert value("elasticjob_wall_seconds", part="productive") == 40
    assert value("elasticjob_jobs_below_goodput", percent="50") == 3
    stop()
