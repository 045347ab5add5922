"""The chart installed, upgraded and removed on a real API server.

No kubelet here: the end-to-end tests run the operator from it.
"""

from __future__ import annotations

import copy
import json
import uuid

import pytest

from hack.cluster import ClusterError, ControlPlane
from tests.integration.chart import CRD, Release, of_kind, release, rendered

__all__ = ["release"]


def test_jobs_survive_an_upgrade_and_a_reinstallation(control_plane_server: ControlPlane, release: Release) -> None:
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


def test_the_charts_pods_meet_restricted_pod_security(control_plane_server: ControlPlane) -> None:
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
