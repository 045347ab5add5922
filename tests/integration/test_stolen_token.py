"""Playing the thief: what can be done with the operator's token, under the chart's roles and admission policy, on a
real API server. Nothing is written unless a test says so."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elasticjob_api import ElasticJob
from elasticjob_operator.resources.autoscaler import autoscaler
from elasticjob_operator.resources.certificates import certificates_secret
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.resources.etcd_members import etcd_disruption_budget
from elasticjob_operator.resources.network_policies import worker_network_policy
from elasticjob_operator.resources.pods import worker_pod
from elasticjob_operator.resources.services import etcd_service

from hack.support import eventually
from tests.integration.chart import CRD, Release, release
from tests.integration.operator.kube import ApiStatusError, Json, Kube, Namespace
from tests.integration.operator.optional_crds import crds_of_kueue, installed
from tests.integration.test_chart_rights import kubeconfig_of_operator

__all__ = ["release"]

MERGE = "application/merge-patch+json"
JOB: Json = {
    "apiVersion": "elasticjob.dev/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "digits"},
    "spec": {
        "workers": {
            "minReplicas": 1,
            "maxReplicas": 2,
            "template": {"spec": {"containers": [{"name": "trainer", "image": "train", "command": ["elasticrun"]}]}},
        },
        "scaling": {
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
                }
            ]
        },
    },
}
STRANGER: Json = {"metadata": {"name": "stranger"}, "spec": {"containers": [{"name": "web", "image": "web"}]}}
LABELS = {"app.kubernetes.io/managed-by": "elasticjob-operator", "elasticjob.dev/job-name": "digits"}

OWNED = "may write only objects that belong to an ElasticJob"
OTHERS = "may change and delete only objects that belong to an ElasticJob"
SELECTS = "select the pods of their own ElasticJob"
CLOSED = "may not write in namespaces of Kubernetes itself, nor in its own"
OPAQUE = "only Secrets of type Opaque"
INSIDE = "only Services that are reached from within the cluster"
FORBIDDEN = "is forbidden: User .* cannot"
TTL = "only ElasticJobs with spec.lifecycle.ttlSecondsAfterFinished"


def own_objects(job: ElasticJob) -> dict[str, Json]:
    """What the operator itself creates, by resource."""
    return {
        "pods": worker_pod(job, index=0, run=1, endpoint="etcd:2379"),
        "services": etcd_service(job),
        "statefulsets": etcd_stateful_set(job, "etcd"),
        "secrets": certificates_secret(job, f"digits-etcd-{job.uid[:8]}-1"),
        "horizontalpodautoscalers": autoscaler(job),
        "networkpolicies": worker_network_policy(job, metrics_port=9100, metrics_from=[]) or {},
        "poddisruptionbudgets": etcd_disruption_budget(job),
    }


@dataclasses.dataclass
class Scene:
    """A namespace with a job and with pods, a Service and a Secret of someone else."""

    thief: Kube
    admin: Kube
    ns: Namespace
    release: Release
    job: ElasticJob

    def create(self, plural: str, changes: dict[str, Any], namespace: str = "") -> None:
        """Like one of the operator's own objects, with other values at these paths; None: without them."""
        body = copy.deepcopy(own_objects(self.job)[plural])
        namespace = body["metadata"]["namespace"] = self.release.namespace if namespace == "OWN" else namespace
        if not namespace:
            namespace = body["metadata"]["namespace"] = self.ns.name
        for path, value in changes.items():
            *above, last = path.split("/")
            where: Any = body
            for word in above:
                where = where[int(word) if word.isdigit() else word]
            if value is None:
                del where[last]
            else:
                where[last] = value
        path = Namespace(self.thief, namespace).path(plural)
        self.thief.call("POST", path, body, dryRun="All")

    def call(self, method: str, path: str, body: Any = None) -> None:
        kind = MERGE if method == "PATCH" else "application/json"
        path = path.replace("NS", f"namespaces/{self.ns.name}").replace("OWN", f"namespaces/{self.release.namespace}")
        self.thief.call(method, path, body, kind, dryRun="All")


@pytest.fixture(scope="module")
def scene(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Once the admission policy is in force: the API server takes a moment to load it."""
    release.kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{CRD}")
    admin = Kube(release.control_plane.kubeconfig)
    thief = Kube(kubeconfig_of_operator(release, tmp_path_factory.mktemp("thief")))
    ns = Namespace(admin, f"thief-{uuid.uuid4().hex[:8]}")
    admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": ns.name}})
    job = ElasticJob.parse(ns.create("elasticjobs", JOB))
    expiring = copy.deepcopy(JOB)
    expiring["metadata"]["name"] = "expiring"
    expiring["spec"]["lifecycle"] = {"ttlSecondsAfterFinished": 60}
    ns.create("elasticjobs", expiring)
    for plural, body in own_objects(job).items():
        body["metadata"]["name"] = "digits-own" if plural == "pods" else body["metadata"]["name"]
        ns.create(plural, body)
    ns.create("pods", STRANGER)
    posing = {**STRANGER, "metadata": {"name": "posing", "labels": {**LABELS, "elasticjob.dev/component": "etcd"}}}
    ns.create("pods", posing)
    ns.create("services", {"metadata": {"name": "stranger"}, "spec": {"ports": [{"port": 80}]}})
    ns.create("secrets", {"metadata": {"name": "stranger"}})
    found = Scene(thief, admin, ns, release, job)
    eventually(lambda: OWNED in refusal(lambda: found.create("pods", {"metadata/labels": {}})), what="the policy")
    yield found
    admin.call("DELETE", f"/api/v1/namespaces/{ns.name}")


def refusal(attempt: Callable[[], None]) -> str:
    """Empty: it is not refused."""
    try:
        attempt()
    except ApiStatusError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("plural", own_objects(ElasticJob.parse({**JOB, "metadata": {"name": "a", "namespace": "b"}})))
def test_what_the_operator_needs_is_allowed(scene: Scene, plural: str) -> None:
    name = own_objects(scene.job)[plural]["metadata"]["name"]
    new = f"digits-{uuid.uuid4().hex[:6]}"
    scene.create(plural, {"metadata/name": new})
    existing = scene.ns.path(plural, "digits-own" if plural == "pods" else name)
    if plural != "secrets":
        scene.call("PATCH", existing, {"metadata": {"annotations": {"a": "b"}}})
    scene.call("DELETE", existing)


def owner(**changes: Any) -> dict[str, Any]:
    found = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "name": "digits", "uid": "u" * 36}
    return {"metadata/ownerReferences": [{**found, "controller": True, **changes}]}


NO_OWNER: dict[str, Any] = {"metadata/ownerReferences": None}
ALL_PODS: dict[str, Any] = {"matchLabels": {}}
OTHER_PODS = {"matchLabels": {"app": "web"}}
REFUSED_CREATES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a pod of no one": ("pods", NO_OWNER, "", OWNED),
    "a pod of a Job": ("pods", owner(apiVersion="batch/v1", kind="Job"), "", OWNED),
    "a pod of another group's ElasticJob": ("pods", owner(apiVersion="evil.dev/v1"), "", OWNED),
    "a pod that its owner does not control": ("pods", owner(controller=False), "", OWNED),
    "a pod with another job's label": ("pods", owner(name="other"), "", OWNED),
    "a pod without our labels": ("pods", {"metadata/labels": {"app": "web"}}, "", OWNED),
    "a pod with a name of someone else's": ("pods", {"metadata/name": "postgres-0"}, "", OWNED),
    "a pod in kube-system": ("pods", {}, "kube-system", CLOSED),
    "a pod in kube-public": ("pods", {}, "kube-public", CLOSED),
    "a pod in kube-node-lease": ("pods", {}, "kube-node-lease", CLOSED),
    "a pod next to the operator": ("pods", {}, "OWN", CLOSED),
    "a Secret next to the operator": ("secrets", {}, "OWN", CLOSED),
    "a Secret of no one": ("secrets", NO_OWNER, "", OWNED),
    "the operator's CA elsewhere": ("secrets", {**NO_OWNER, "metadata/name": "ej-elasticjob-ca"}, "", OWNED),
    "another Secret in place of the CA": ("secrets", {**NO_OWNER, "metadata/name": "another"}, "OWN", OWNED),
    "a token of an account": (
        "secrets",
        {
            "type": "kubernetes.io/service-account-token",
            "metadata/annotations": {"kubernetes.io/service-account.name": "default"},
        },
        "",
        OPAQUE,
    ),
    "a Helm release": ("secrets", {"type": "helm.sh/release.v1"}, "", OPAQUE),
    "a policy for all pods": ("networkpolicies", {"spec/podSelector": {}}, "", SELECTS),
    "a policy for others' pods": ("networkpolicies", {"spec/podSelector": OTHER_PODS}, "", SELECTS),
    "a policy of no one": ("networkpolicies", NO_OWNER, "", OWNED),
    "a policy in kube-system": ("networkpolicies", {}, "kube-system", CLOSED),
    "a Service on every node": ("services", {"spec/type": "NodePort"}, "", INSIDE),
    "a Service for the internet": ("services", {"spec/type": "LoadBalancer"}, "", INSIDE),
    "a Service with others' addresses": ("services", {"spec/externalIPs": ["192.0.2.1"]}, "", INSIDE),
    "a Service for another host": (
        "services",
        {"spec/type": "ExternalName", "spec/externalName": "evil.example.com"},
        "",
        INSIDE,
    ),
    "a Service for others' pods": ("services", {"spec/selector": {"app": "web"}}, "", SELECTS),
    "a Service without pods": ("services", {"spec/selector": None}, "", SELECTS),
    "a Service with a name of someone else's": ("services", {"metadata/name": "postgres"}, "", OWNED),
    "a budget that keeps all pods": ("poddisruptionbudgets", {"spec/selector": ALL_PODS}, "", SELECTS),
    "a budget of no one": ("poddisruptionbudgets", NO_OWNER, "", OWNED),
    "an autoscaler of a Deployment": (
        "horizontalpodautoscalers",
        {"spec/scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "digits"}},
        "",
        SELECTS,
    ),
    "an autoscaler of another job": ("horizontalpodautoscalers", {"spec/scaleTargetRef/name": "expiring"}, "", SELECTS),
    "a StatefulSet of no one": ("statefulsets", NO_OWNER, "", OWNED),
    "a StatefulSet of other pods": (
        "statefulsets",
        {"spec/selector": OTHER_PODS, "spec/template/metadata/labels": {"app": "web"}},
        "",
        SELECTS,
    ),
}


@pytest.mark.parametrize("trick", REFUSED_CREATES)
def test_a_thief_of_the_token_creates_nothing_else(scene: Scene, trick: str) -> None:
    plural, changes, namespace, words = REFUSED_CREATES[trick]
    assert re.search(words, refusal(lambda: scene.create(plural, changes, namespace)))


POD, CORE, APPS = "/api/v1/NS/pods", "/api/v1/NS", "/apis/apps/v1/NS"
CONTAINER = {"name": "spy", "image": "spy"}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}
TOKEN = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
REFUSED_CALLS: dict[str, tuple[str, str, Any, str]] = {
    "delete a stranger's pod": ("DELETE", f"{POD}/stranger", None, OTHERS),
    "delete a pod that poses as an etcd": ("DELETE", f"{POD}/posing", None, OTHERS),
    "claim a stranger's pod": (
        "PATCH",
        f"{POD}/stranger",
        {"metadata": {"labels": LABELS, "ownerReferences": owner()["metadata/ownerReferences"]}},
        OTHERS,
    ),
    "let a worker pod go": ("PATCH", f"{POD}/digits-own", {"metadata": {"ownerReferences": None}}, OWNED),
    "delete a stranger's Secret": ("DELETE", f"{CORE}/secrets/stranger", None, OTHERS),
    "delete a stranger's Service": ("DELETE", f"{CORE}/services/stranger", None, OTHERS),
    "redirect a stranger's Service": (
        "PATCH",
        f"{CORE}/services/stranger",
        {"spec": {"selector": {"a": "b"}}},
        OTHERS,
    ),
    "open a job's Service": ("PATCH", f"{CORE}/services/digits-etcd", {"spec": {"externalIPs": ["192.0.2.1"]}}, INSIDE),
    "redirect a job's Service": (
        "PATCH",
        f"{CORE}/services/digits-etcd",
        {"spec": {"selector": {"elasticjob.dev/job-name": None, "app": "web"}}},
        SELECTS,
    ),
    "delete a job": ("DELETE", "/apis/elasticjob.dev/v1alpha1/NS/elasticjobs/digits", None, TTL),
    "create a job": ("POST", "/apis/elasticjob.dev/v1alpha1/NS/elasticjobs", JOB, FORBIDDEN),
    "change a job": ("PATCH", "/apis/elasticjob.dev/v1alpha1/NS/elasticjobs/digits", {"spec": {}}, FORBIDDEN),
    "run a command in a pod": ("POST", f"{POD}/digits-own/exec", None, FORBIDDEN),
    "add a container to a pod": (
        "PATCH",
        f"{POD}/digits-own/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [CONTAINER]}},
        FORBIDDEN,
    ),
    "evict a pod": ("POST", f"{POD}/stranger/eviction", {"metadata": {"name": "stranger"}}, FORBIDDEN),
    "delete all pods at once": ("DELETE", POD, None, FORBIDDEN),
    "list Secrets": ("GET", f"{CORE}/secrets", None, FORBIDDEN),
    "read a stranger's Secret": ("GET", f"{CORE}/secrets/stranger", None, FORBIDDEN),
    "get an account's token": ("POST", f"{CORE}/serviceaccounts/default/token", TOKEN, FORBIDDEN),
    "create a DaemonSet": (
        "POST",
        f"{APPS}/daemonsets",
        {"metadata": {"name": "spy"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}},
        FORBIDDEN,
    ),
    "create a ConfigMap": ("POST", f"{CORE}/configmaps", {"metadata": {"name": "spy"}}, FORBIDDEN),
    "bind itself to cluster-admin": (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "spy"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        },
        FORBIDDEN,
    ),
    "remove the admission policies": (
        "DELETE",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/x",
        None,
        FORBIDDEN,
    ),
    "taint a node": ("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}, FORBIDDEN),
    "reach a kubelet": ("GET", "/api/v1/nodes/n1/proxy/pods", None, FORBIDDEN),
    "take a controller's lease": (
        "PATCH",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler",
        {},
        FORBIDDEN,
    ),
    "create a namespace": ("POST", "/api/v1/namespaces", {"metadata": {"name": "spy"}}, FORBIDDEN),
}


@pytest.mark.parametrize("trick", REFUSED_CALLS)
def test_a_thief_of_the_token_changes_and_reads_nothing_else(scene: Scene, trick: str) -> None:
    method, path, body, words = REFUSED_CALLS[trick]
    assert re.search(words, refusal(lambda: scene.call(method, path, body)))


HOST = [{"name": "host", "hostPath": {"path": "/"}}]
ACCEPTED_CREATES: dict[str, tuple[str, dict[str, Any]]] = {
    "a worker pod of any account: it runs what users' templates say": ("pods", {"spec/serviceAccountName": "default"}),
    "a worker pod with the node's disk: Pod Security decides, as for users": ("pods", {"spec/volumes": HOST}),
    "a worker pod on a node of its choice: users may, too": ("pods", {"spec/nodeName": "n1"}),
    "a pod of a job that does not exist: the garbage collector deletes it": ("pods", owner()),
    "an etcd of any image: jobs name it": ("statefulsets", {"spec/template/spec/containers/0/image": "spy"}),
}
ACCEPTED_CALLS: dict[str, tuple[str, str, Any]] = {
    "delete any worker pod: it replaces them": ("DELETE", f"{POD}/digits-own", None),
    "change a worker pod: it takes the host name from one that is replaced": (
        "PATCH",
        f"{POD}/digits-own",
        {"metadata": {"labels": {"elasticjob.dev/job-uid": None}}},
    ),
    "write any status of a job: it is the only writer": (
        "PATCH",
        "/apis/elasticjob.dev/v1alpha1/NS/elasticjobs/digits/status",
        {"status": {"summary": "Succeeded"}},
    ),
    "delete a job whose owner wants it deleted one day": (
        "DELETE",
        "/apis/elasticjob.dev/v1alpha1/NS/elasticjobs/expiring",
        None,
    ),
    "read all jobs and pods: it watches them": ("GET", "/api/v1/pods", None),
    "read the operator's own CA: it signs with it": ("GET", "/api/v1/OWN/secrets/ej-elasticjob-ca", None),
}


@pytest.mark.parametrize("what", ACCEPTED_CREATES)
def test_what_a_thief_may_create_is_known(scene: Scene, what: str) -> None:
    plural, changes = ACCEPTED_CREATES[what]
    scene.create(plural, {"metadata/name": f"digits-{uuid.uuid4().hex[:6]}", **changes})


@pytest.mark.parametrize("what", ACCEPTED_CALLS)
def test_what_a_thief_may_do_is_known(scene: Scene, what: str) -> None:
    method, path, body = ACCEPTED_CALLS[what]
    assert re.search("^(404: .* not found)?$", refusal(lambda: scene.call(method, path, body)))


def test_a_pod_of_a_job_that_does_not_exist_is_deleted_by_the_garbage_collector(scene: Scene) -> None:
    """No expression can look up another object."""
    body = own_objects(scene.job)["pods"]
    body["metadata"] |= {"name": "digits-orphan", "ownerReferences": owner()["metadata/ownerReferences"]}
    Namespace(scene.thief, scene.ns.name).create("pods", json.loads(json.dumps(body)))
    eventually(lambda: scene.ns.get("pods", "digits-orphan") is None, what="the pod is gone")


def test_the_policy_limits_no_other_user(scene: Scene) -> None:
    body = {"metadata": {"name": "any"}, "spec": {"containers": [CONTAINER]}}
    scene.admin.call("POST", scene.ns.path("pods"), body, dryRun="All")
    scene.admin.call("DELETE", scene.ns.path("pods", "stranger"), dryRun="All")


def test_the_operator_creates_its_certificate_authority(scene: Scene) -> None:
    authority = {"metadata": {"name": "ej-elasticjob-ca"}}
    scene.thief.call("POST", f"/api/v1/namespaces/{scene.release.namespace}/secrets", authority, dryRun="All")


def test_the_operator_deletes_the_pods_of_jobs_etcds(scene: Scene) -> None:
    """One that was lost with its node: its owner is the etcd's StatefulSet."""
    created = scene.ns.get("statefulsets", "digits-etcd") or {}
    reference = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "digits-etcd",
        "uid": created["metadata"]["uid"],
    }
    labels = {**LABELS, "elasticjob.dev/component": "etcd"}
    lost = {"metadata": {"name": "digits-etcd-0", "labels": labels, "ownerReferences": [reference]}}
    scene.ns.create("pods", {**lost, "spec": {"containers": [CONTAINER]}})
    scene.call("DELETE", f"{POD}/digits-etcd-0")


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ({"kueue.x-k8s.io/multikueue-origin": "multikueue"}, ""),
        ({"elasticjob.dev/job-uid": owner()["metadata/ownerReferences"][0]["uid"]}, ""),
        ({"elasticjob.dev/job-uid": "another"}, OTHERS),
        ({}, OTHERS),
    ],
    ids=["copied", "lost its owner", "of another job", "of no job"],
)
def test_only_workloads_that_multikueue_has_copied_or_that_lost_their_owner_are_claimed(
    scene: Scene, label: Json, words: str
) -> None:
    with installed(scene.release.control_plane, *crds_of_kueue("workloads")):
        labels = {**LABELS, **label}
        pod_set = {"name": "workers", "count": 1, "template": {"spec": {"containers": [CONTAINER]}}}
        workload = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {"name": "digits", "labels": labels},
            "spec": {"podSets": [pod_set]},
        }
        scene.ns.create("workloads", workload)
        claim = {"metadata": {"ownerReferences": owner()["metadata/ownerReferences"]}}
        path = scene.ns.path("workloads", "digits")

        found = refusal(lambda: scene.call("PATCH", path, claim))
        assert words in found if words else not found
