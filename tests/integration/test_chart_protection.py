"""What the chart adds to protect the operator and others from it, on a real API server: flow schema, network policy,
policy for queues, image digests, and objects for Prometheus. The admission policy for the operator: test_stolen_token.

No network plug-in here: that packets are dropped is not tested, only that the NetworkPolicy selects the operator.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import ssl
import urllib.parse
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import ClusterError, ControlPlane
from hack.cluster.programs import source_of_module
from hack.cluster.settings import KUBERNETES_VERSION
from hack.support import eventually
from tests.integration.chart import CHART, Release, helm, of_kind, release, rendered
from tests.integration.test_chart_rights import kubeconfig_of_operator

__all__ = ["release"]

PROMETHEUS_CRDS = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
MONITORING = (
    "metrics.serviceMonitor.enabled=true",
    "metrics.podMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "metrics.authentication=true",
    "metrics.tls.secretName=certificate",
)

JOB: dict[str, Any] = {
    "apiVersion": "elasticjob.dev/v1alpha1",
    "kind": "ElasticJob",
    "spec": {
        "workers": {
            "template": {"spec": {"containers": [{"name": "trainer", "image": "train", "command": ["elasticrun"]}]}}
        }
    },
}


class Operator:
    """What the API server says to the operator's token."""

    def __init__(self, release: Release, folder: Path) -> None:
        self._kubeconfig = kubeconfig_of_operator(release, folder)

    def headers(self, path: str) -> Message:
        """Of the API server's response."""
        config = yaml.safe_load(self._kubeconfig.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        address = urllib.parse.urlsplit(cluster["server"])
        context = ssl.create_default_context(cadata=authority)
        connection = http.client.HTTPSConnection(address.netloc, context=context, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {user['token']}"})
            return connection.getresponse().headers


@pytest.fixture(scope="module")
def operator(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(release, tmp_path_factory.mktemp("operator"))


def test_the_operators_requests_do_not_wait_behind_those_of_other_service_accounts(
    release: Release, operator: Operator
) -> None:
    expect_flow(release, operator, "/api/v1/namespaces/default/pods", "", "workload-high")


def test_renewals_of_the_lease_do_not_wait_behind_other_requests_of_the_operator(
    release: Release, operator: Operator
) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases/elasticjob"
    expect_flow(release, operator, leases, "-lease", "leader-election")


def expect_flow(release: Release, operator: Operator, path: str, schema: str, level: str) -> None:
    uids = tuple(
        release.kubectl("get", kind, name, "--output=jsonpath={.metadata.uid}")
        for kind, name in (
            ("flowschema", f"{release.namespace}-ej-elasticjob{schema}"),
            ("prioritylevelconfiguration", level),
        )
    )

    def found() -> bool:
        headers = operator.headers(path)
        return (headers["X-Kubernetes-PF-FlowSchema-UID"], headers["X-Kubernetes-PF-PriorityLevel-UID"]) == uids

    eventually(found, what=f"the API server uses the flow schema for {path}")


def test_jobs_run_next_to_an_operator_that_is_installed_into_the_default_namespace() -> None:
    texts = [
        helm("template", "ej", CHART, "--namespace", namespace, "--kube-version", KUBERNETES_VERSION)
        for namespace in ("default", "system")
    ]
    closed = [
        "'kube-system','kube-public','kube-node-lease']",
        "'kube-system','kube-public','kube-node-lease','system']",
    ]
    assert [[item in text for item in closed] for text in texts] == [[True, False], [False, True]]


def test_each_protection_can_be_turned_off() -> None:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema", "NetworkPolicy")
    assert {item["kind"] for item in of_kind(rendered(), *kinds)} == {*kinds}
    off = [f"{item}.enabled=false" for item in ("admissionPolicy", "flowSchema", "networkPolicy")]
    assert of_kind(rendered(*off), *kinds) == []


def test_the_network_policy_leaves_only_the_operators_own_port_open(control_plane_server: ControlPlane) -> None:
    objects = rendered("networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b")
    (policy,), (deployment,) = (of_kind(objects, kind) for kind in ("NetworkPolicy", "Deployment"))
    template = deployment["spec"]["template"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [
        item["name"] for item in template["spec"]["containers"][0]["ports"]
    ]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    policy["metadata"]["namespace"] = "default"
    control_plane_server.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(policy))


def test_with_tls_only_the_metrics_are_limited_to_their_readers() -> None:
    metrics_from = "networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b"
    (policy,) = of_kind(rendered("metrics.tls.secretName=certificate", metrics_from), "NetworkPolicy")
    probes, metrics = policy["spec"]["ingress"]
    assert (probes["ports"][0]["port"], "from" in probes) == ("http", False)
    assert (metrics["ports"][0]["port"], metrics["from"]) == ("metrics", [{"podSelector": {"matchLabels": {"a": "b"}}}])


def test_an_image_is_pinned_by_its_digest() -> None:
    digest = f"sha256:{'b' * 64}"
    (deployment,) = of_kind(
        rendered("image.repository=own/operator", "image.tag=v1", f"image.digest={digest}"), "Deployment"
    )
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"own/operator@{digest}"


def test_on_openshift_the_namespace_chooses_the_user() -> None:
    text = helm(
        "template", "ej", CHART, "--kube-version", KUBERNETES_VERSION, "--api-versions=security.openshift.io/v1"
    )
    (deployment,) = of_kind([item for item in yaml.safe_load_all(text) if item], "Deployment")
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert "runAsUser" not in context
    assert "runAsGroup" not in context
    assert context["runAsNonRoot"] is True


def test_prometheus_takes_only_agents_metrics_from_worker_pods() -> None:
    """Anyone may put our labels on a pod: a forged elasticjob_leader would raise an alert, or hide one."""
    (monitor,) = of_kind(rendered(*MONITORING), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert {"sourceLabels": ["__name__"], "regex": "elasticjob_agent_.*", "action": "keep"} in endpoint[
        "metricRelabelings"
    ]
    assert monitor["spec"]["sampleLimit"] > 0


def test_alerts_are_about_the_operators_own_series() -> None:
    """A pod of anyone may have a metric of the same name."""
    (rules,) = of_kind(rendered(*MONITORING), "PrometheusRule")
    for rule in rules["spec"]["groups"][0]["rules"]:
        series = re.findall(r"elasticjob_\w+(?:\{([^}]*)\})?", rule["expr"])
        own = 'namespace="system",job="ej-elasticjob-metrics"'
        assert series
        assert all(item.startswith(own) for item in series), rule["alert"]


HOSTILE_FIELDS = {
    "wide": json.dumps([{}] * 100_000),
    "long": json.dumps("x" * 300_000),
    "many keys": json.dumps({f"key{number}": None for number in range(20_000)}),
    "deep": '{"' + '":{"'.join(["a" * 40] * 9000) + '": 1' + "}" * 9000,
    "in a declared list": json.dumps([{"name": f"V{number}", "value": "x" * 300} for number in range(1000)]),
}


@pytest.mark.parametrize("field", HOSTILE_FIELDS)
def test_a_job_of_more_than_256_kib_is_refused_at_admission(release: Release, field: str) -> None:
    def job(value: str) -> str:
        body = json.dumps({**JOB, "metadata": {"name": "large"}})
        name = "env" if field == "in a declared list" else "zz"
        return body.replace('"name": "trainer"', f'"name": "trainer", "{name}": {value}')

    def create(value: str) -> str:
        words = ("create", "--dry-run=server", "--validate=false", "--filename=-")
        try:
            return release.kubectl(*words, stdin=job(value))
        except ClusterError as error:
            return str(error)

    eventually(lambda: "spec is larger than 256 KiB" in create(HOSTILE_FIELDS[field]), what="it is refused")
    assert "created" in create("[]")


def test_only_the_queue_lets_a_job_run(control_plane_server: ControlPlane) -> None:
    queue = "system:serviceaccount:queue:queue"
    release = Release(control_plane_server, "crds.install=false", f"queueing.resumedBy={{{queue}}}")
    release.install()
    kubectl, own = release.kubectl, f"--namespace={release.namespace}"
    grant = (own, "--clusterrole=cluster-admin", f"--user={queue}")
    kubectl("create", "rolebinding", "queue", *grant)

    def job(name: str, *, suspend: bool) -> str:
        metadata = {"name": name, "namespace": release.namespace}
        return json.dumps({**JOB, "metadata": metadata, "spec": {**JOB["spec"], "suspend": suspend}})

    def resume(*flags: str) -> None:
        change = '--patch={"spec": {"suspend": false}}'
        kubectl("patch", "ej", "queued", own, "--type=merge", change, *flags)

    def refused() -> bool:
        try:
            kubectl("create", "--dry-run=server", "--filename=-", stdin=job("eager", suspend=False))
        except ClusterError as error:
            return "Only the queue lets a job run" in str(error)
        return False

    try:
        eventually(refused, what="the policy is in force")
        kubectl("create", "--filename=-", stdin=job("queued", suspend=True))
        with pytest.raises(ClusterError, match="Only the queue lets a job run"):
            resume()
        kubectl("label", "ej", "queued", own, "a=b")
        resume(f"--as={queue}")
        kubectl("label", "ej", "queued", own, "a=c", "--overwrite")
    finally:
        kubectl("delete", "ej", "--all", own, "--wait=false")
        release.uninstall()


def test_the_prometheus_operator_accepts_the_monitors_and_alerts(control_plane_server: ControlPlane) -> None:
    """With its own CRDs, from its Go module."""
    kubectl = control_plane_server.kubectl
    folder = source_of_module(PROMETHEUS_CRDS) / "example" / "prometheus-operator-crd"
    kinds = ("servicemonitors", "podmonitors", "prometheusrules")
    crds = [f"{folder}/monitoring.coreos.com_{kind}.yaml" for kind in kinds]
    kubectl("apply", "--server-side", *(f"--filename={crd}" for crd in crds))
    names = [f"crd/{kind}.monitoring.coreos.com" for kind in kinds]
    try:
        kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
        objects = of_kind(rendered(*MONITORING), "ServiceMonitor", "PodMonitor", "PrometheusRule")
        assert len(objects) == len(kinds)
        for item in objects:
            item["metadata"]["namespace"] = "default"
            kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=json.dumps(item))
    finally:
        kubectl("delete", *names, "--wait=false")
