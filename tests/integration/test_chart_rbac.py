"""What the chart's roles allow, on a real API server: what the operator needs, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hack.cluster import ControlPlane
from tests.integration.chart import Release, release

__all__ = ["release"]


@pytest.fixture(scope="module")
def namespaced(control_plane_server: ControlPlane) -> Iterator[Release]:
    """A release that watches only the namespace `default`."""
    release = Release(control_plane_server, "watchNamespaces={default}", "crds.install=false")
    release.install()
    yield release
    release.uninstall()


NEEDED = [
    *((verb, "elasticjobs.elasticjob.dev") for verb in ("get", "list", "watch", "delete")),
    ("patch", "elasticjobs.elasticjob.dev/status"),
    ("update", "elasticjobs.elasticjob.dev/finalizers"),
    *((verb, "pods") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(
        (verb, what)
        for what in (
            "services",
            "statefulsets.apps",
            "horizontalpodautoscalers.autoscaling",
            "networkpolicies.networking.k8s.io",
            "poddisruptionbudgets.policy",
        )
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    *((verb, "secrets") for verb in ("create", "delete")),
    *((verb, "events") for verb in ("create", "list", "patch")),
]


NODES = [("get", "nodes"), ("list", "nodes"), ("watch", "nodes")]
DENIED = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("watch", "secrets"),
    ("patch", "secrets"),
    ("deletecollection", "secrets"),
    ("get", "configmaps"),
    ("create", "elasticjobs.elasticjob.dev"),
    ("patch", "elasticjobs.elasticjob.dev"),
    ("create", "pods/exec"),
    ("create", "deployments.apps"),
    ("deletecollection", "pods"),
    ("update", "pods"),
    ("list", "namespaces"),
    ("patch", "nodes"),
    ("get", "leases.coordination.k8s.io"),
    ("create", "leases.coordination.k8s.io"),
    ("create", "rolebindings.rbac.authorization.k8s.io"),
]


@pytest.mark.parametrize(("verb", "what"), NEEDED + NODES)
def test_the_operator_is_allowed_what_it_needs(release: Release, verb: str, what: str) -> None:
    assert release.may(verb, what, "anywhere")


def test_the_operator_may_get_kubelet_leases_and_nothing_more(release: Release) -> None:
    assert release.may("get", "leases.coordination.k8s.io", "kube-node-lease")
    assert not release.may("update", "leases.coordination.k8s.io", "kube-node-lease")
    assert not release.may("list", "leases.coordination.k8s.io", "kube-node-lease")


@pytest.mark.parametrize(("verb", "what"), DENIED)
def test_the_operator_is_allowed_nothing_else(release: Release, verb: str, what: str) -> None:
    assert not release.may(verb, what, "anywhere")


def test_the_operator_may_hold_the_leases_of_its_shards_and_no_others(release: Release) -> None:
    lease = "leases.coordination.k8s.io"
    for verb in ("get", "update"):
        assert release.may(verb, lease, release.namespace, name="ej-elasticjob")
        assert release.may(verb, lease, release.namespace, name="ej-elasticjob-shard-31")
        assert not release.may(verb, lease, release.namespace, name="another")
        assert not release.may(verb, lease, "kube-system", name="ej-elasticjob")
    for verb in ("create", "list"):
        assert release.may(verb, lease, release.namespace)
        assert not release.may(verb, lease, "kube-system")
    for verb in ("delete", "patch"):
        assert not release.may(verb, lease, release.namespace, name="ej-elasticjob")


def test_operator_may_read_its_certificate_authority_and_no_other_secret(release: Release) -> None:
    assert release.may("get", "secrets", release.namespace, name="ej-elasticjob-ca")
    assert release.may("create", "secrets", release.namespace)
    assert not release.may("get", "secrets", release.namespace, name="another")
    assert not release.may("get", "secrets", "anywhere", name="ej-elasticjob-ca")
    for verb in ("list", "watch", "patch"):
        assert not release.may(verb, "secrets", release.namespace, name="ej-elasticjob-ca")


def test_the_operator_may_read_what_jobs_name_only_by_the_names_in_the_chart(release: Release) -> None:
    assert release.may("get", "secrets", "anywhere", name="elasticjob-etcd")
    assert not release.may("get", "secrets", "anywhere", name="another")
    for verb in ("list", "watch", "patch"):
        assert not release.may(verb, "secrets", "anywhere", name="elasticjob-etcd")


@pytest.mark.parametrize(("verb", "what"), NEEDED)
def test_a_named_namespace_grants_access_there_and_nowhere_else(namespaced: Release, verb: str, what: str) -> None:
    assert namespaced.may(verb, what, "default")
    assert not namespaced.may(verb, what, "kube-system")


REVIEWS = ("tokenreviews.authentication.k8s.io", "subjectaccessreviews.authorization.k8s.io")


def test_the_operator_may_review_tokens_only_where_metrics_require_them(
    control_plane_server: ControlPlane, release: Release
) -> None:
    assert not any(release.may("create", what, "") for what in REVIEWS)
    secured = Release(control_plane_server, "crds.install=false", "metrics.authentication=true")
    secured.install()
    try:
        assert all(secured.may("create", what, "") for what in REVIEWS)
        roles = secured.kubectl("get", "clusterrole", f"{secured.namespace}-ej-elasticjob-metrics-reader", "-ojson")
        assert json.loads(roles)["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    finally:
        secured.uninstall()


def test_editors_of_a_namespace_may_run_jobs_in_it(release: Release) -> None:
    names = release.kubectl(
        "get", "clusterrole", "--selector=rbac.authorization.k8s.io/aggregate-to-edit=true", "--output=name"
    )
    assert f"{release.namespace}-ej-elasticjob-edit" in names
