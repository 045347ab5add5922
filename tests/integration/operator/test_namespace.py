"""A namespace that is being terminated takes its jobs along: the operator must not stand in the way, nor cry about
it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.support import eventually
from tests.integration.operator.kube import ApiStatusError, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents

ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture
def keep_jobs(ns: Namespace) -> Iterator[Callable[[], None]]:
    """Stops the namespace controller from deleting the jobs of the namespace before their pods, as it may any day."""
    name = f"keep-{uuid.uuid4().hex[:8]}"
    rule = {
        "apiGroups": ["elasticjob.dev"],
        "apiVersions": ["*"],
        "operations": ["DELETE"],
        "resources": ["elasticjobs"],
    }
    policy: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "kept by the test"}],
        },
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": ns.name}}
    binding: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": selector}},
    }

    def kept() -> bool:
        try:
            ns.kube.call("DELETE", ns.path("elasticjobs", "digits"), dryRun="All")
        except ApiStatusError as error:
            return "kept by the test" in str(error)
        return False

    def keep() -> None:
        ns.kube.call("POST", f"{ADMISSION}/validatingadmissionpolicies", policy)
        ns.kube.call("POST", f"{ADMISSION}/validatingadmissionpolicybindings", binding)
        eventually(kept, what="jobs cannot be deleted")

    yield keep
    for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        ns.kube.call("DELETE", f"{ADMISSION}/{plural}/{name}")


def test_a_job_in_a_terminating_namespace_is_ignored_quietly(
    ns: Namespace, operator: Operator, training: Callable[..., Agents], keep_jobs: Callable[[], None]
) -> None:
    training(replicas=2)
    keep_jobs()
    ns.kube.call("DELETE", f"/api/v1/namespaces/{ns.name}")
    eventually(lambda: "its namespace is being terminated" in operator.log_text(), what="the operator has seen why")
    eventually(lambda: not ns.workers(), what="the namespace controller took the pods")
    ns.scale("digits", 4)  # the operator looks again
    eventually(lambda: ns.job("digits")["metadata"]["generation"] == 2, what="scaled")
    reasons = {condition["reason"] for condition in ns.status("digits")["conditions"]}
    assert "PodRejected" not in reasons
    told = [line for line in operator.log_text().splitlines() if "terminated" in line]
    assert len(told) == 1, told
    assert "Rejected" not in operator.log_text()
    assert "Cannot post Event" not in operator.log_text()
    assert operator.log_text().count("WorkerCreated: ") == 1, "what was refused did not happen"
