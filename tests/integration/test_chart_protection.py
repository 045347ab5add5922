"""What the chart adds to protect the operator and others from it, on a real API server: admission policy, flow schema,
network policy, image digests, and objects for Prometheus.

No network plug-in here: that packets are dropped is not tested, only that the NetworkPolicy selects the operator.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import urllib.parse
import uuid
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import ClusterError, ControlPlane
from hack.cluster.output import run
from hack.cluster.programs import program, source_of_module
from hack.cluster.settings import KUBERNETES_VERSION
from hack.support import eventually
from tests.integration.chart import CHART, CRD, Release, helm, of_kind, release, rendered
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
LABELS = {"app.kubernetes.io/managed-by": "elasticjob-operator"}
JOB = {
    "apiVersion": "elasticjob.dev/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "protected", "namespace": "default"},
    "spec": {
        "workers": {
            "template": {"spec": {"containers": [{"name": "trainer", "image": "train", "command": ["elasticrun"]}]}}
        }
    },
}


def owned_by(job: dict[str, Any]) -> list[dict[str, Any]]:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    return [{"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name, "uid": uid, "controller": True}]


def a_pod(name: str, owners: list[dict[str, Any]], labels: dict[str, str] = LABELS) -> str:
    metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": owners}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return json.dumps({**pod, "spec": {"containers": [{"name": "trainer", "image": "train"}]}})


def a_secret(name: str, namespace: str, owners: list[dict[str, Any]]) -> str:
    metadata = {"name": name, "namespace": namespace, "labels": LABELS, "ownerReferences": owners}
    return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})


class Operator:
    """What the operator's token may do. Nothing is written."""

    def __init__(self, release: Release, folder: Path) -> None:
        self._kubeconfig = kubeconfig_of_operator(release, folder)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return run([program("kubectl"), "--kubeconfig", self._kubeconfig, *words], stdin=stdin)

    def create(self, body: str) -> None:
        self.kubectl("create", "--dry-run=server", "--validate=false", "--filename=-", stdin=body)

    def delete(self, name: str) -> None:
        self.kubectl("delete", "--dry-run=server", "--namespace=default", "pod", name)

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
def job(release: Release) -> Iterator[dict[str, Any]]:
    kubectl = release.kubectl
    kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{CRD}")
    yield json.loads(kubectl("create", "--output=json", "--filename=-", stdin=json.dumps(JOB)))
    kubectl("delete", "ej", "protected", "--wait=false")


@pytest.fixture(scope="module")
def operator(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Returned once the admission policy is in force: the API server takes a moment to load it."""
    operator = Operator(release, tmp_path_factory.mktemp("operator"))

    def rejected() -> bool:
        try:
            operator.create(a_pod("stray", []))
        except ClusterError as error:
            return "ValidatingAdmissionPolicy" in str(error)
        return False

    eventually(rejected, what="the admission policy is in force")
    return operator


@pytest.fixture(scope="module")
def pods(control_plane_server: ControlPlane, job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names of a worker pod, and of a pod that belongs to no job."""
    kubectl = control_plane_server.kubectl
    names = f"ours-{uuid.uuid4().hex[:6]}", f"theirs-{uuid.uuid4().hex[:6]}"
    for name, owners in zip(names, (owned_by(job), []), strict=True):
        kubectl("create", "--validate=false", "--filename=-", stdin=a_pod(name, owners))
    yield names
    kubectl("delete", "pod", *names, "--namespace=default", "--ignore-not-found", "--wait=false")


def test_the_operator_creates_only_objects_of_a_job_with_its_label(operator: Operator, job: dict[str, Any]) -> None:
    operator.create(a_pod("worker", owned_by(job)))
    with pytest.raises(ClusterError, match="may write only objects that belong to an ElasticJob"):
        operator.create(a_pod("worker", []))
    with pytest.raises(ClusterError, match="may write only objects that belong to an ElasticJob"):
        operator.create(a_pod("worker", [{**owned_by(job)[0], "kind": "Job", "apiVersion": "batch/v1"}]))
    with pytest.raises(ClusterError, match=r"app\.kubernetes\.io/managed-by=elasticjob-operator"):
        operator.create(a_pod("worker", owned_by(job), labels={"app": "other"}))


def test_the_operator_creates_only_network_policies_of_a_job(operator: Operator, job: dict[str, Any]) -> None:
    """With others it could cut off any pod."""
    policy: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "protected", "namespace": "default", "labels": LABELS, "ownerReferences": owned_by(job)},
        "spec": {"podSelector": {"matchLabels": {"elasticjob.dev/job-name": "protected"}}},
    }
    operator.create(json.dumps(policy))
    with pytest.raises(ClusterError, match="select the pods of one ElasticJob"):
        operator.create(json.dumps({**policy, "spec": {"podSelector": {}}}))
    with pytest.raises(ClusterError, match="may write only objects that belong to an ElasticJob"):
        operator.create(json.dumps({**policy, "metadata": {**policy["metadata"], "ownerReferences": []}}))


def test_the_operator_creates_only_secrets_of_a_job_and_its_own_certificate_authority(
    release: Release, operator: Operator, job: dict[str, Any]
) -> None:
    operator.create(a_secret("protected-etcd", "default", owned_by(job)))
    operator.create(a_secret("ej-elasticjob-ca", release.namespace, []))
    for name, namespace in (("ej-elasticjob-ca", "default"), ("another", release.namespace)):
        with pytest.raises(ClusterError, match="may write only objects that belong to an ElasticJob"):
            operator.create(a_secret(name, namespace, []))


def test_a_stolen_token_neither_mints_tokens_nor_runs_pods_of_kubernetes_itself(
    operator: Operator, job: dict[str, Any]
) -> None:
    secret = json.loads(a_secret("token", "default", owned_by(job)))
    secret["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "default"}
    with pytest.raises(ClusterError, match="only Secrets of type Opaque"):
        operator.create(json.dumps({**secret, "type": "kubernetes.io/service-account-token"}))
    pod = json.loads(a_pod("worker", owned_by(job)))
    for namespace in ("kube-system", "kube-public", "kube-node-lease"):
        pod["metadata"]["namespace"] = namespace
        with pytest.raises(ClusterError, match="namespaces of Kubernetes itself"):
            operator.create(json.dumps(pod))


def test_the_operator_deletes_only_objects_of_a_job(operator: Operator, pods: tuple[str, str]) -> None:
    ours, theirs = pods
    operator.delete(ours)
    with pytest.raises(ClusterError, match="may change and delete only objects that belong to an ElasticJob"):
        operator.delete(theirs)


def test_the_operator_deletes_the_pods_of_jobs_etcds(control_plane_server: ControlPlane, operator: Operator) -> None:
    """One that was lost with its node: its owner is the etcd's StatefulSet."""
    kubectl, etcd = control_plane_server.kubectl, {**LABELS, "elasticjob.dev/component": "etcd"}
    names = {f"etcd-{uuid.uuid4().hex[:6]}": etcd, f"another-{uuid.uuid4().hex[:6]}": LABELS}
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": next(iter(names)), "namespace": "default"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x"}},
                "spec": {"containers": [{"name": "etcd", "image": "etcd"}]},
            },
        },
    }
    created = json.loads(kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(stateful_set)))
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet"}
    owner |= {key: created["metadata"][key] for key in ("name", "uid")}
    for name, labels in names.items():
        kubectl("create", "--validate=false", "--filename=-", stdin=a_pod(name, [owner], labels))
    ours, theirs = names
    operator.delete(ours)
    with pytest.raises(ClusterError, match="may change and delete only objects that belong to an ElasticJob"):
        operator.delete(theirs)
    kubectl("delete", "statefulset", ours, "--namespace=default", "--wait=false")  # and its pods


def test_the_admission_policy_limits_no_other_user(
    control_plane_server: ControlPlane, operator: Operator, pods: tuple[str, str]
) -> None:
    assert operator, "the policy is in force"
    pod = a_pod("any", [], labels={})
    control_plane_server.kubectl("create", "--dry-run=server", "--validate=false", "--filename=-", stdin=pod)
    control_plane_server.kubectl("delete", "--dry-run=server", "--namespace=default", "pod", pods[1])


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


def test_each_protection_can_be_turned_off() -> None:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema", "NetworkPolicy")
    assert {each["kind"] for each in of_kind(rendered(), *kinds)} == {*kinds} - {"NetworkPolicy"}
    assert of_kind(rendered("admissionPolicy.enabled=false", "flowSchema.enabled=false"), *kinds) == []


def test_the_network_policy_leaves_only_the_operators_own_port_open(control_plane_server: ControlPlane) -> None:
    objects = rendered("networkPolicy.enabled=true", "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b")
    (policy,), (deployment,) = (of_kind(objects, kind) for kind in ("NetworkPolicy", "Deployment"))
    template = deployment["spec"]["template"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [
        each["name"] for each in template["spec"]["containers"][0]["ports"]
    ]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    policy["metadata"]["namespace"] = "default"
    control_plane_server.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(policy))


def test_with_tls_only_the_metrics_are_limited_to_their_readers() -> None:
    settings = ("networkPolicy.enabled=true", "networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b")
    (policy,) = of_kind(rendered("metrics.tls.secretName=certificate", *settings), "NetworkPolicy")
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
    (deployment,) = of_kind([each for each in yaml.safe_load_all(text) if each], "Deployment")
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
        for each in objects:
            each["metadata"]["namespace"] = "default"
            kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=json.dumps(each))
    finally:
        kubectl("delete", *names, "--wait=false")
