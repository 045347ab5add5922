from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.resources.drift import correction
from elasticjob_operator.resources.etcd import etcd_stateful_set, secret_of
from elasticjob_operator.resources.services import etcd_service, workers_service

from tests.unit.operator.builders import UID, make_job


def container(**etcd: Any) -> dict[str, Any]:
    job = make_job(spec={"rendezvous": {"type": "Dedicated", "etcd": etcd}} if etcd else None)
    found: dict[str, Any] = etcd_stateful_set(job, "default:1")["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_workers_service_is_headless_and_names_pods_before_they_are_ready() -> None:
    service = workers_service(make_job())
    assert service["metadata"]["name"] == "digits"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_the_etcd_service_has_an_address_that_outlives_its_pod() -> None:
    spec = etcd_service(make_job())["spec"]
    assert spec.get("clusterIP") != "None"
    assert spec["ports"][0]["port"] == 2379
    assert spec["publishNotReadyAddresses"] is True


def test_services_select_their_pods_only() -> None:
    pod_labels = etcd_stateful_set(make_job(), "x")["spec"]["template"]["metadata"]["labels"]
    selected = etcd_service(make_job())["spec"]["selector"]
    assert selected.items() <= pod_labels.items()
    assert not workers_service(make_job())["spec"]["selector"].items() <= pod_labels.items()


def test_the_jobs_etcd_image_and_resources_take_precedence() -> None:
    assert container()["image"] == "default:1"
    mine = container(image="mine:2", resources={"requests": {"memory": "1Gi"}})
    assert (mine["image"], mine["resources"]) == ("mine:2", {"requests": {"memory": "1Gi"}})


def test_etcd_passes_the_restricted_pod_security_standard() -> None:
    pod = etcd_stateful_set(make_job(), "x")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = pod["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


def test_etcd_compacts_its_history_and_is_probed_every_second() -> None:
    found = container()
    assert "--auto-compaction-mode=revision" in found["command"]
    assert found["readinessProbe"]["periodSeconds"] == 1
    assert found["readinessProbe"]["httpGet"]["path"] == "/health"


@pytest.mark.parametrize("build", [workers_service, etcd_service, lambda job: etcd_stateful_set(job, "x")])
def test_every_object_is_owned_by_the_job(build: Any) -> None:
    assert build(make_job())["metadata"]["ownerReferences"][0]["uid"] == UID


@pytest.mark.parametrize(
    ("desired", "observed", "patch"),
    [
        pytest.param({"a": 1}, {"a": 1, "default": 2}, {}, id="defaults of the API server"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}, {"a": {"b": 1}}, id="changed"),
        pytest.param({"a": {"b": 1}}, {"a": None}, {"a": {"b": 1}}, id="removed"),
        pytest.param({"l": [{"a": 1}]}, {"l": [{"a": 1, "default": 2}]}, {}, id="lists, element by element"),
        pytest.param({"l": [1]}, {"l": [1, 2]}, {"l": [1]}, id="list grew"),
        pytest.param(
            {"selector": {"a": "1"}},
            {"selector": {"a": "1", "b": "2"}},
            {"selector": {"b": None}},
            id="a selector that selects less",
        ),
        pytest.param({"labels": {"a": "1"}}, {"labels": {"a": "1", "b": "2"}}, {}, id="a user's label"),
        pytest.param(
            {"requests": {"cpu": "0.5"}}, {"requests": {"cpu": "500m"}}, {}, id="the same quantity, spelled canonically"
        ),
        pytest.param(
            {"requests": {"cpu": "0.5"}},
            {"requests": {"cpu": "600m"}},
            {"requests": {"cpu": "0.5"}},
            id="another quantity",
        ),
        pytest.param({"name": "0.5"}, {"name": "500m"}, {"name": "0.5"}, id="not a quantity"),
    ],
)
def test_manual_edits_are_corrected(desired: Any, observed: Any, patch: Any) -> None:
    assert correction(desired, observed) == patch


def test_the_jobs_etcd_scheduling_takes_precedence_over_the_operators() -> None:
    defaults = {
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "nodeSelector": {"pool": "infra"},
        "priorityClassName": "low",
    }
    plain = etcd_stateful_set(make_job(), "x", defaults)["spec"]["template"]["spec"]
    assert {field: plain[field] for field in defaults} == defaults
    said = {
        "tolerations": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "registry"}],
    }
    mine = etcd_stateful_set(make_job(spec={"rendezvous": {"type": "Dedicated", "etcd": said}}), "x", defaults)["spec"][
        "template"
    ]["spec"]
    assert {field: mine[field] for field in said} == said
    assert mine["nodeSelector"] == {"pool": "infra"}
    none = etcd_stateful_set(
        make_job(spec={"rendezvous": {"type": "Dedicated", "etcd": {"tolerations": []}}}), "x", defaults
    )["spec"]["template"]["spec"]
    assert "tolerations" not in none, "an explicit empty list counts"
    assert "tolerations" not in etcd_stateful_set(make_job(), "x")["spec"]["template"]["spec"]


def test_an_etcd_with_tls_asks_every_client_for_a_certificate() -> None:
    pod = etcd_stateful_set(make_job(), "x", secret="digits-etcd-1")["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    assert "--client-cert-auth=true" in found["command"]
    assert "--listen-client-urls=https://0.0.0.0:2379" in found["command"]
    assert not [flag for flag in found["command"] if "http://0.0.0.0:2379" in flag]
    assert pod["volumes"][1]["secret"] == {"secretName": "digits-etcd-1", "defaultMode": 0o440}


@pytest.mark.parametrize(("secret", "port"), [("", "client"), ("digits-etcd-1", "health")])
def test_the_kubelet_asks_for_health_where_it_needs_no_certificate(secret: str, port: str) -> None:
    (found,) = etcd_stateful_set(make_job(), "x", secret=secret)["spec"]["template"]["spec"]["containers"]
    probes = [found[item]["httpGet"] for item in ("readinessProbe", "livenessProbe")]
    assert [(probe["port"], probe["scheme"]) for probe in probes] == [(port, "HTTP")] * 2
    assert port in {item["name"] for item in found["ports"]}


@pytest.mark.parametrize("secret", ["", "digits-etcd-1"])
def test_an_existing_etcd_tells_its_secret(secret: str) -> None:
    assert secret_of(etcd_stateful_set(make_job(), "x", secret=secret)) == secret


@pytest.mark.parametrize(("own", "wanted"), [({}, "256Mi"), ({"resources": {"limits": {"memory": "2Gi"}}}, "2Gi")])
def test_the_resources_of_an_etcd_are_the_jobs_or_else_the_operators(own: dict[str, Any], wanted: str) -> None:
    job = make_job(spec={"rendezvous": {"type": "Dedicated", "etcd": own}})
    defaults = {"resources": {"limits": {"memory": "256Mi"}}}
    (container,) = etcd_stateful_set(job, "x", defaults)["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"memory": wanted}}
