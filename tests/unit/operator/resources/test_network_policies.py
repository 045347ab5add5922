"""Who may connect to the pods of a job: the table of docs/guides/security.md, judged by what a network enforces."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.resources.drift import exact_correction
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.resources.network_policies import etcd_network_policy, worker_network_policy
from elasticjob_operator.resources.pods import worker_pod

from tests.network_policies import Endpoint, may_connect
from tests.unit.operator.builders import TEMPLATE, UID, make_job

OPERATOR_PODS = {"app.kubernetes.io/name": "elasticjob", "app.kubernetes.io/component": "operator"}
IS_OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elasticjob-system"}},
    "podSelector": {"matchLabels": OPERATOR_PODS},
}
METRICS = 9100
HOST_NETWORK = {"spec": {**TEMPLATE["spec"], "hostNetwork": True}}


def a_pod(namespace: str, **labels: str) -> Endpoint:
    return Endpoint.of({"metadata": {"labels": labels}}, namespace)


def worker_of(job: Any) -> Endpoint:
    return Endpoint.of(worker_pod(job, index=1, run=1, endpoint="etcd:2379"))


def etcd_of(job: Any) -> Endpoint:
    return Endpoint.of(etcd_stateful_set(job, "etcd:1")["spec"]["template"], job.namespace)


JOB = make_job()
OTHER = make_job().model_copy(update={"metadata": JOB.metadata.model_copy(update={"name": "other"})})
ENDPOINTS = {
    "worker": worker_of(JOB),
    "etcd": etcd_of(JOB),
    "worker of another job": worker_of(OTHER),
    "etcd of another job": etcd_of(OTHER),
    "operator": Endpoint.of({"metadata": {"labels": OPERATOR_PODS}}, "elasticjob-system"),
    "operator's labels elsewhere": Endpoint.of({"metadata": {"labels": OPERATOR_PODS}}, "ml"),
    "pod of the namespace": a_pod("ml", app="notebook"),
    "pod of another namespace": a_pod("other"),
    "worker's labels in another namespace": Endpoint.of({"metadata": {"labels": dict(worker_of(JOB).labels)}}, "other"),
    "Prometheus": a_pod("monitoring", app="prometheus"),
    "host": Endpoint(address="10.0.0.7"),
}
ETCD_PORTS, WORKER_PORTS = (2379, 2380, 2381), (22, METRICS, 29500, 45123)


def policies(job: Any = JOB, metrics_from: Any = ()) -> list[dict[str, Any]]:
    found = (
        worker_network_policy(job, metrics_port=METRICS, metrics_from=metrics_from),
        etcd_network_policy(job, operator=[IS_OPERATOR]),
    )
    return [item for item in found if item is not None]


@pytest.mark.parametrize("source", ENDPOINTS)
def test_only_the_job_and_the_operator_reach_its_etcd(source: str) -> None:
    allowed = {port for port in ETCD_PORTS if may_connect(policies(), ENDPOINTS[source], ENDPOINTS["etcd"], port)}
    assert allowed == {*([2379] if source in ("worker", "operator") else []), *([2380] if source == "etcd" else [])}


@pytest.mark.parametrize("source", ENDPOINTS)
def test_only_the_jobs_worker_pods_reach_each_other(source: str) -> None:
    allowed = {port for port in WORKER_PORTS if may_connect(policies(), ENDPOINTS[source], ENDPOINTS["worker"], port)}
    assert allowed == ({*WORKER_PORTS} if source == "worker" else set())


@pytest.mark.parametrize("source", ENDPOINTS)
def test_the_agents_metrics_can_be_opened_to_prometheus_only(source: str) -> None:
    only = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    found = may_connect(policies(metrics_from=only), ENDPOINTS[source], ENDPOINTS["worker"], METRICS)
    assert found == (source in ("worker", "Prometheus"))


def test_pods_of_other_jobs_are_not_protected_by_a_jobs_policies() -> None:
    assert may_connect(policies(), ENDPOINTS["host"], ENDPOINTS["worker of another job"], 22)
    assert may_connect(policies(), ENDPOINTS["host"], ENDPOINTS["etcd of another job"], 2379)


def test_a_policy_of_the_user_opens_more() -> None:
    users = {
        "metadata": {"namespace": "ml"},
        "spec": {
            "podSelector": {"matchLabels": {"elasticjob.dev/job-name": "digits"}},
            "ingress": [{"ports": [{"port": 6006}], "from": [{"podSelector": {"matchLabels": {"app": "notebook"}}}]}],
        },
    }
    notebook, worker = ENDPOINTS["pod of the namespace"], ENDPOINTS["worker"]
    assert not may_connect(policies(), notebook, worker, 6006)
    assert may_connect([*policies(), users], notebook, worker, 6006)


def test_worker_pods_on_the_host_network_reach_their_etcd() -> None:
    """No selector matches their address, and no policy applies to them."""
    job = make_job(template=HOST_NETWORK)
    assert [policy["metadata"]["name"] for policy in policies(job)] == ["digits-etcd"]
    assert may_connect(policies(job), ENDPOINTS["host"], etcd_of(job), 2379)
    assert not may_connect(policies(job), ENDPOINTS["host"], etcd_of(job), 2380)


@pytest.mark.parametrize("policy", policies(), ids=lambda item: str(item["metadata"]["name"]))
def test_policies_are_owned_by_the_job_and_leave_egress_alone(policy: dict[str, Any]) -> None:
    assert policy["metadata"]["ownerReferences"][0]["uid"] == UID
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert "egress" not in policy["spec"]


def test_a_policy_is_written_as_the_api_server_stores_it() -> None:
    """Otherwise it would look changed forever."""
    given: list[dict[str, Any]] = [
        {"namespaceSelector": {"matchLabels": {}}, "podSelector": {}},
        {"ipBlock": {"cidr": "::/0", "except": []}},
    ]
    policy = worker_network_policy(JOB, metrics_port=METRICS, metrics_from=given)
    assert policy is not None
    assert policy["spec"]["ingress"][1]["from"] == [
        {"namespaceSelector": {}, "podSelector": {}},
        {"ipBlock": {"cidr": "::/0"}},
    ]


@pytest.mark.parametrize(
    ("desired", "observed", "patch"),
    [
        pytest.param({"a": 1}, {"a": 1}, {}, id="the same"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, {"a": {"c": None}}, id="a field more"),
        pytest.param({"l": [{"a": 1}]}, {"l": [{"a": 1, "b": 2}]}, {"l": [{"a": 1}]}, id="a field more in a list"),
        pytest.param({"l": [1]}, {}, {"l": [1]}, id="removed"),
    ],
)
def test_a_policy_is_corrected_to_the_letter(desired: Any, observed: Any, patch: Any) -> None:
    assert exact_correction(desired, observed) == patch
