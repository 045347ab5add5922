"""The operator with exactly the permissions that the chart grants: no request of it is denied."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import ControlPlane
from hack.support import eventually
from tests.integration.chart import Release

JOB = {
    "apiVersion": "elasticjob.dev/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "rights"},
    "spec": {
        "workers": {
            "replicas": 2,
            "minReplicas": 1,
            "template": {
                "spec": {"containers": [{"name": "trainer", "image": "train:1", "command": ["elasticrun", "train.py"]}]}
            },
        }
    },
}


AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class Audited(ControlPlane):
    """With an audit log, the only place that has every denied request."""

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    def _server_flags(self) -> dict[str, Any]:
        policy = self.directory / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(AUDIT_POLICY), encoding="utf-8")
        return {**super()._server_flags(), "audit-policy-file": policy, "audit-log-path": self.audit_log}

    def forbidden(self, namespace: str) -> set[str]:
        """The requests of the namespace's service accounts that were denied, as `verb resource`."""
        user = f"system:serviceaccount:{namespace}:"
        entries = [json.loads(line) for line in self.audit_log.read_text(encoding="utf-8").splitlines()]
        requests = [entry for entry in entries if entry["user"]["username"].startswith(user)]
        assert requests, "the audit log has no request of the operator"
        denied = [entry for entry in requests if entry["responseStatus"]["code"] == 403]
        return {f"{entry['verb']} {entry['objectRef']['resource']}" for entry in denied}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    server = Audited(tmp_path_factory.mktemp("audited"))
    with server:
        yield server


def kubeconfig_of_operator(release: Release, folder: Path) -> Path:
    """The administrator's kubeconfig, with the operator's token."""
    token = release.kubectl("create", "token", "ej-elasticjob", "--namespace", release.namespace).strip()
    config = yaml.safe_load(release.control_plane.kubeconfig.read_text(encoding="utf-8"))
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "operator.conf"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def running_operator(release: Release, folder: Path, namespaces: str) -> Iterator[Path]:
    """The operator as a process; yields the path of its log."""
    log = folder / "operator.log"
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig_of_operator(release, folder)),
        "ELASTICJOB_WATCH_NAMESPACES": namespaces,
        "ELASTICJOB_PROBE_PORT": "0",
        "ELASTICJOB_RESYNC_SECONDS": "1",
        "ELASTICJOB_CA_NAMESPACE": release.namespace,
        "ELASTICJOB_CA_NAME": "ej-elasticjob-ca",
        "ELASTICJOB_LEASE_NAMESPACE": release.namespace,
        "ELASTICJOB_LEASE_NAME": "ej-elasticjob",
        "ELASTICJOB_NETWORK_POLICIES": json.dumps({"operator": [{"podSelector": {}}], "metricsPort": 9100}),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticjob_operator"], env=environment, stdout=output, stderr=output
        )
        try:
            yield log
            assert process.poll() is None, f"the operator ended, log: {log}"
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize(
    ("namespaces", "settings", "expected"),
    [
        pytest.param("", [], set(), id="cluster-wide"),
        pytest.param("one", ["watchNamespaces={one}"], set(), id="one namespace", marks=pytest.mark.nightly),
        pytest.param(
            "two", ["watchNamespaces={two}", "rbac.readNodes=false"], {"list nodes"}, id="one namespace, without nodes"
        ),
    ],
)
def test_no_request_of_the_operator_is_forbidden(
    audited: Audited, tmp_path: Path, namespaces: str, settings: list[str], expected: set[str]
) -> None:
    namespace = namespaces or "any"
    audited.kubectl("create", "namespace", namespace)
    release = Release(audited, *settings)
    release.install()
    audited.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd/elasticjobs.elasticjob.dev")
    try:
        with running_operator(release, tmp_path, namespaces) as log:
            exercise_operator(audited, namespace, log)
    finally:
        release.uninstall()
    assert audited.forbidden(release.namespace) == expected, log.read_text(encoding="utf-8")


def exercise_operator(audited: Audited, namespace: str, log: Path) -> None:
    """Makes the operator create, repair, replace and delete objects, and write status and Events."""

    def kubectl(*words: str, stdin: str | None = None) -> str:
        return audited.kubectl("--namespace", namespace, *words, stdin=stdin)

    def soon(predicate: Callable[[], object], what: str) -> None:
        eventually(predicate, what=f"{what}; the operator's log: {log}")

    def field(what: str, path: str) -> str:
        return kubectl("get", what, "--ignore-not-found", f"--output=jsonpath={{{path}}}")

    def workers() -> set[str]:
        return set(
            kubectl(
                "get",
                "pods",
                "--selector=elasticjob.dev/component=worker",
                "--output=jsonpath={.items[*].metadata.uid}",
            ).split()
        )

    kubectl("apply", "--filename=-", stdin=json.dumps(JOB))
    soon(lambda: len(workers()) == 2, "two worker pods")
    soon(
        lambda: field("service/rights", ".spec.clusterIP") and field("service/rights-etcd", ".spec.clusterIP"),
        "two Services",
    )
    soon(lambda: field("statefulset/rights-etcd", ".spec.replicas") == "1", "the job's etcd")
    soon(lambda: field("ej/rights", ".status.summary") == "WaitingForWorkers", "a status")
    soon(lambda: kubectl("get", "events", "--output=name"), "an Event")

    kubectl("patch", "service", "rights", "--type=json", '--patch=[{"op": "remove", "path": "/spec/selector"}]')
    soon(lambda: "rights" in field("service/rights", ".spec.selector"), "the Service repaired")
    kubectl("patch", "statefulset", "rights-etcd", '--patch={"spec": {"replicas": 3}}')
    soon(lambda: field("statefulset/rights-etcd", ".spec.replicas") == "1", "the StatefulSet repaired")

    kubectl("patch", "networkpolicy", "rights-worker", "--type=merge", '--patch={"spec": {"ingress": []}}')
    soon(lambda: field("networkpolicy/rights-worker", ".spec.ingress"), "the NetworkPolicy repaired")
    kubectl("delete", "networkpolicy", "rights-worker")
    soon(lambda: field("networkpolicy/rights-worker", ".spec.ingress"), "the NetworkPolicy created again")

    before = workers()
    index = "elasticjob.dev/job-name=rights,elasticjob.dev/worker-index=0"
    kubectl("delete", "pod", f"--selector={index}", "--grace-period=0", "--force")
    soon(lambda: len(workers()) == 2 and workers() != before, "a pod replaced")
    kubectl("scale", "ej/rights", "--replicas=1")
    soon(lambda: len(workers()) == 1, "a pod deleted")
