"""The Helm chart on a real API server: what it installs is valid, and the operator's rights are those it needs and no
more.

No kubelet here: whether the operator runs from it is for the end-to-end tests.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from elasticjob_operator.allowed import is_allowed
from elasticjob_operator.settings import Settings

from hack.cluster import ClusterError, ControlPlane
from hack.cluster.output import run
from hack.cluster.programs import program
from hack.cluster.settings import KUBERNETES_VERSION

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "elasticjob"
CRD = "elasticjobs.elasticjob.dev"


def helm(*words: str | Path) -> str:
    return run([program("helm"), *words])


def rendered(*settings: str) -> list[dict[str, Any]]:
    """The objects of the chart with these --set."""
    flags = [word for setting in settings for word in ("--set", setting)]
    text = helm("template", "ej", CHART, "--namespace", "system", "--kube-version", KUBERNETES_VERSION, *flags)
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] in kinds]


def test_lint_is_content() -> None:
    helm("lint", "--strict", CHART)


def test_crd_of_the_chart_is_the_generated_one() -> None:
    (crd,) = of_kind(rendered(), "CustomResourceDefinition")
    written = yaml.safe_load((ROOT / "crds" / f"{CRD}.yaml").read_text(encoding="utf-8"))
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    crd["metadata"].pop("labels")
    assert crd == written
    assert of_kind(rendered("crds.install=false"), "CustomResourceDefinition") == []


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("rendezvous.endpoint=http://etcd:2379", "/rendezvous/endpoint"),
        ("replicaCount=9", "/replicaCount"),
        ("leaderElection.leaseSeconds=1", "/leaderElection/leaseSeconds"),
        ("metrics.serviceMonitor.interval=often", "/metrics/serviceMonitor/interval"),
        ("logging.format=xml", "/logging/format"),
        ("replicas=1", "'replicas' not allowed"),
        ("watchNamespaces={Team_A}", "/watchNamespaces/0"),
        ("rendezvous.allowedEndpoints={a b}", "/rendezvous/allowedEndpoints/0"),
        ("etcd.affinity=x", "'affinity' not allowed"),
        ("serviceAccount.create=false", "name the service account to use"),
        ("metrics.serviceMonitor.enabled=true,metrics.service.enabled=false", "needs metrics.service.enabled"),
    ],
)
def test_wrong_value_is_refused_by_name(setting: str, complaint: str) -> None:
    with pytest.raises(ClusterError) as caught:
        rendered(setting)
    assert complaint in str(caught.value)


def test_values_reach_the_operator() -> None:
    objects = rendered(
        "etcdImage=own/etcd:1", "rendezvous.endpoint=etcd:2379", "watchNamespaces={a,b}", "logging.format=plain"
    )
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {
        each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]
    } == {
        "ELASTICJOB_ETCD_IMAGE": "own/etcd:1",
        "ELASTICJOB_RENDEZVOUS_ENDPOINT": "etcd:2379",
        "ELASTICJOB_WATCH_NAMESPACES": "a,b",
        "ELASTICJOB_ETCD_POD": '{"imagePullSecrets":[],"nodeSelector":{},"priorityClassName":"","tolerations":[]}',
        "ELASTICJOB_NODE_LOST_SECONDS": "5",
        "ELASTICJOB_STUCK_SECONDS": "300",
        "ELASTICJOB_LOG_FORMAT": "plain",
        "ELASTICJOB_PROBE_PORT": "8080",
        "ELASTICJOB_LEASE_NAMESPACE": "system",
        "ELASTICJOB_LEASE_NAME": "ej-elasticjob",
        "ELASTICJOB_LEASE_IDENTITY": "metadata.name",
        "ELASTICJOB_LEASE_SECONDS": "10",
    }


def test_allowed_endpoints_and_places_for_etcds_reach_the_operator() -> None:
    objects = rendered(
        "rendezvous.allowedEndpoints={*.infra.svc,10.0.0.0/8}",
        "etcd.nodeSelector.pool=infra",
        "etcd.tolerations[0].key=gpu",
    )
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = Settings.from_environment({each["name"]: each.get("value", "") for each in container["env"]})
    assert settings.etcd_pod == {"nodeSelector": {"pool": "infra"}, "tolerations": [{"key": "gpu"}]}
    assert is_allowed("etcd.infra.svc:2379", settings.allowed_endpoints)
    assert not is_allowed("192.168.1.1:2379", settings.allowed_endpoints)


def test_with_named_namespaces_nothing_but_nodes_is_cluster_wide() -> None:
    objects = rendered("watchNamespaces={a,b}", "rbac.aggregateToUserRoles=false")
    assert {each["metadata"]["namespace"] for each in of_kind(objects, "Role", "RoleBinding")} == {
        "a",
        "b",
        "system",
        "kube-node-lease",
    }
    (election,) = [each for each in of_kind(objects, "Role") if each["metadata"]["namespace"] == "system"]
    assert {resource for rule in election["rules"] for resource in rule["resources"]} == {"leases"}
    (role,) = of_kind(objects, "ClusterRole")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]
    assert (
        of_kind(
            rendered("watchNamespaces={a}", "rbac.readNodes=false", "rbac.aggregateToUserRoles=false"), "ClusterRole"
        )
        == []
    )


def test_two_replicas_are_disrupted_one_at_a_time_and_one_is_never_kept_from_a_drain() -> None:
    (budget,) = of_kind(rendered("replicaCount=2"), "PodDisruptionBudget")
    (deployment,) = of_kind(rendered("replicaCount=2"), "Deployment")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert budget["spec"]["maxUnavailable"] == 1
    assert of_kind(rendered(), "PodDisruptionBudget") == []
    assert of_kind(rendered("replicaCount=2", "podDisruptionBudget.enabled=false"), "PodDisruptionBudget") == []


def test_metrics_service_and_monitor_find_the_operators_port() -> None:
    objects = rendered("metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.release=prometheus")
    (service,), (monitor,), (deployment,) = (
        of_kind(objects, kind) for kind in ("Service", "ServiceMonitor", "Deployment")
    )
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert {each["name"] for each in template["spec"]["containers"][0]["ports"]} == {
        service["spec"]["ports"][0]["targetPort"]
    }
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert of_kind(rendered("metrics.service.enabled=false"), "Service") == []
    assert of_kind(rendered(), "ServiceMonitor") == []


class Release:
    """The chart, installed in a namespace of its own."""

    def __init__(self, control_plane: ControlPlane, *settings: str) -> None:
        self.control_plane = control_plane
        self.namespace = f"chart-{uuid.uuid4().hex[:8]}"
        self.kubectl = control_plane.kubectl
        self._flags = [word for setting in settings for word in ("--set", setting)]

    def helm(self, *words: str | Path) -> str:
        return helm("--kubeconfig", self.control_plane.kubeconfig, "--namespace", self.namespace, *words)

    def install(self) -> str:
        return self.helm("upgrade", "--install", "ej", CHART, "--create-namespace", "--take-ownership", *self._flags)

    def uninstall(self) -> None:
        self.helm("uninstall", "ej", "--ignore-not-found")
        self.kubectl("delete", "namespace", self.namespace, "--wait=false", "--ignore-not-found")

    def may(self, verb: str, what: str, namespace: str, name: str = "") -> bool:
        """`what` as kubectl writes it: resource, resource.group, resource.group/subresource."""
        kind, _, subresource = what.partition("/")
        resource, _, group = kind.partition(".")
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{self.namespace}:ej-elasticjob",
                "resourceAttributes": {
                    "verb": verb,
                    "group": group,
                    "resource": resource,
                    "subresource": subresource,
                    "namespace": namespace,
                    "name": name,
                },
            },
        }
        answer = json.loads(self.kubectl("create", "--output=json", "--filename=-", stdin=json.dumps(review)))
        return bool(answer["status"]["allowed"])


@pytest.fixture(scope="module")
def release(control_plane_server: ControlPlane) -> Iterator[Release]:
    release = Release(control_plane_server)
    release.install()
    yield release
    release.uninstall()


@pytest.fixture(scope="module")
def narrow(control_plane_server: ControlPlane) -> Iterator[Release]:
    """Works in the namespace `default` alone."""
    release = Release(control_plane_server, "watchNamespaces={default}", "crds.install=false")
    release.install()
    yield release
    release.uninstall()


NEEDED = [
    *((verb, "elasticjobs.elasticjob.dev") for verb in ("get", "list", "watch", "delete")),
    ("patch", "elasticjobs.elasticjob.dev/status"),
    ("update", "elasticjobs.elasticjob.dev/finalizers"),
    *((verb, "pods") for verb in ("get", "list", "watch", "create", "delete")),
    *(
        (verb, what)
        for what in ("services", "statefulsets.apps", "horizontalpodautoscalers.autoscaling")
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    ("create", "events"),
]
NODES = [("get", "nodes"), ("list", "nodes"), ("watch", "nodes")]
NEVER = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("get", "configmaps"),
    ("create", "elasticjobs.elasticjob.dev"),
    ("patch", "elasticjobs.elasticjob.dev"),
    ("create", "pods/exec"),
    ("create", "deployments.apps"),
    ("deletecollection", "pods"),
    ("patch", "pods"),
    ("list", "namespaces"),
    ("patch", "nodes"),
    ("get", "leases.coordination.k8s.io"),
    ("create", "leases.coordination.k8s.io"),
    ("create", "rolebindings.rbac.authorization.k8s.io"),
]


@pytest.mark.parametrize(("verb", "what"), NEEDED + NODES)
def test_operator_may_what_it_does(release: Release, verb: str, what: str) -> None:
    assert release.may(verb, what, "anywhere")


def test_operator_may_read_the_leases_of_kubelets_and_no_more(release: Release) -> None:
    assert release.may("get", "leases.coordination.k8s.io", "kube-node-lease")
    assert not release.may("update", "leases.coordination.k8s.io", "kube-node-lease")
    assert not release.may("list", "leases.coordination.k8s.io", "kube-node-lease")


@pytest.mark.parametrize(("verb", "what"), NEVER)
def test_operator_may_nothing_else(release: Release, verb: str, what: str) -> None:
    assert not release.may(verb, what, "anywhere")


def test_operator_may_hold_its_own_lease_and_no_other(release: Release) -> None:
    lease = "leases.coordination.k8s.io"
    for verb in ("get", "update"):
        assert release.may(verb, lease, release.namespace, name="ej-elasticjob")
        assert not release.may(verb, lease, release.namespace, name="another")
        assert not release.may(verb, lease, "kube-system", name="ej-elasticjob")
    assert release.may("create", lease, release.namespace)
    for verb in ("list", "delete", "patch"):
        assert not release.may(verb, lease, release.namespace, name="ej-elasticjob")


@pytest.mark.parametrize(("verb", "what"), NEEDED)
def test_named_namespace_gives_rights_there_and_nowhere_else(narrow: Release, verb: str, what: str) -> None:
    assert narrow.may(verb, what, "default")
    assert not narrow.may(verb, what, "kube-system")


def test_uninstall_leaves_the_jobs_and_an_upgrade_takes_them_over(
    control_plane_server: ControlPlane, release: Release
) -> None:
    kubectl = control_plane_server.kubectl
    template = {"spec": {"containers": [{"name": "trainer", "image": "train"}]}}
    manifest = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "kept"},
        "spec": {"workers": {"template": template}},
    }
    kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{CRD}")
    kubectl("apply", "--filename=-", stdin=json.dumps(manifest))
    release.install()  # an upgrade
    release.helm("uninstall", "ej")
    assert kubectl("get", "ej", "kept", "--output=name").strip() == "elasticjob.elasticjob.dev/kept"
    release.install()
    assert kubectl("get", "ej", "kept", "--output=name").strip() == "elasticjob.elasticjob.dev/kept"
    kubectl("delete", "ej", "kept")


def test_pods_of_the_chart_fit_restricted_pod_security(control_plane_server: ControlPlane) -> None:
    kubectl = control_plane_server.kubectl
    namespace = f"restricted-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl(
        "create",
        "--filename=-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}),
    )
    (deployment,) = of_kind(rendered(), "Deployment")
    (test,) = of_kind(rendered(), "Pod")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    for template in (deployment["spec"]["template"], test):
        metadata = {**template["metadata"], "name": "it", "namespace": namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod))
        loose = copy.deepcopy(pod)
        del loose["spec"]["securityContext"]
        with pytest.raises(ClusterError, match="violates PodSecurity"):
            kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(loose))
    kubectl("delete", "namespace", namespace, "--wait=false")


def test_who_may_edit_a_namespace_may_run_jobs_in_it(release: Release) -> None:
    names = release.kubectl(
        "get", "clusterrole", "--selector=rbac.authorization.k8s.io/aggregate-to-edit=true", "--output=name"
    )
    assert f"{release.namespace}-ej-elasticjob-edit" in names
