"""What doctor finds in every state of a cluster."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest
from elasticjob.cli.doctor import report
from elasticjob.decisions.doctor import RIGHTS, Observed, Result, findings
from elasticjob.errors import ForbiddenError, NotFoundError, UnreachableError
from elasticjob.state import Condition, JobState

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
CRD = {
    "spec": {"versions": [{"name": "v1alpha1", "served": True}]},
    "status": {"conditions": [{"type": "Established", "status": "True"}]},
}


def operator(version: str = "1.2.3", ready: int = 1) -> dict[str, Any]:
    labels = {"app.kubernetes.io/version": version}
    return {"metadata": {"name": "ej", "namespace": "sys", "labels": labels}, "status": {"readyReplicas": ready}}


def node(gpus: int = 8, ready: str = "True") -> dict[str, Any]:
    return {
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}, "conditions": [{"type": "Ready", "status": ready}]}
    }


HEALTHY = Observed(
    "https://x", "ml", "1.2.3", {"gitVersion": "v1.36.0"}, 0.0, CRD, [operator()], [node(), node()], {"list jobs": True}
)
NO_GPU = Condition("Running", "False", "Unschedulable", "no GPU. What to do: add nodes.")
WAITING = JobState("bert", "ml", conditions={"Running": NO_GPU})

IN_QUEUE = dataclasses.replace(WAITING, queue="q")
TRAINS = JobState("bert", "ml", queue="q", conditions={"Running": Condition("Running", "True", "Training", "")})
NO_QUEUE = NotFoundError("There is no LocalQueue q in namespace ml.")


def test_a_healthy_cluster_has_no_problems() -> None:
    found = findings(HEALTHY, NOW)
    assert {item.result for item in found} == {Result.GOOD}
    assert any("with 16 GPUs" in item.what for item in found)


@pytest.mark.parametrize(
    ("change", "result", "what", "remedy"),
    [
        ({"version": UnreachableError("no answer", "vpn")}, Result.BAD, "no answer", "vpn"),
        ({"skew": 120.0}, Result.WARNING, "120 s behind", "set-ntp"),
        ({"skew": -120.0}, Result.WARNING, "120 s ahead of", "set-ntp"),
        ({"crd": None}, Result.BAD, "not installed", "helm install"),
        ({"crd": {**CRD, "spec": {"versions": [{"name": "v2", "served": True}]}}}, Result.BAD, "as v2", "pip install"),
        ({"crd": {**CRD, "status": {}}}, Result.BAD, "not established", ""),
        ({"crd": ForbiddenError("no"), "rights": {"list jobs": False}}, Result.UNKNOWN, "Could not check", ""),
        ({"operators": []}, Result.BAD, "no operator", "helm install"),
        ({"operators": [operator(ready=0)]}, Result.BAD, "sys/ej is not ready", "kubectl describe pods -n sys"),
        ({"operators": [operator("1.1.9")]}, Result.WARNING, "older than this client", "helm upgrade"),
        ({"operators": ForbiddenError("no")}, Result.UNKNOWN, "may not read Deployments", ""),
        ({"nodes": []}, Result.BAD, "None of 0 nodes", "kubectl get nodes"),
        ({"nodes": [node(), node(ready="False")]}, Result.WARNING, "1 of 2 nodes", "kubectl get nodes"),
        ({"gpus": {"nvidia.com/gpu": 16}}, Result.BAD, "no node has more than 8", "--gpus 8"),
        ({"rights": {"list jobs": True, "read logs": False}}, Result.WARNING, "no right to read logs", "rolebinding"),
        ({"job": WAITING}, Result.BAD, "no GPU", "add nodes"),
        ({"job": IN_QUEUE, "queue": NO_QUEUE}, Result.BAD, "bert waits as a job of LocalQueue q", "localqueues -n ml"),
        ({"job": TRAINS, "queue": NO_QUEUE}, Result.WARNING, "bert trains as a job of LocalQueue q", "localqueues"),
    ],
)
def test_every_problem_is_found_with_its_remedy(change: dict[str, Any], result: Result, what: str, remedy: str) -> None:
    found = [finding for finding in findings(dataclasses.replace(HEALTHY, **change), NOW) if what in finding.what]
    assert [item.result for item in found] == [result]
    assert remedy in found[0].remedy


def test_job_whose_queue_is_gone_is_not_said_to_have_no_problems() -> None:
    found = findings(dataclasses.replace(HEALTHY, job=TRAINS, queue=NO_QUEUE), NOW)
    assert not any("has no problems" in item.what for item in found)


def test_all_rights_are_those_that_the_commands_use() -> None:
    """Without one of them, doctor does not say that all are there."""
    asked = {(verb, resource) for verb, resource, _, _ in RIGHTS}
    assert {("get", "elasticjobs"), ("list", "elasticjobs"), ("list", "pods"), ("get", "pods/log")} <= asked
    for *_, what in RIGHTS:
        rights = {item: item != what for *_, item in RIGHTS}
        found = findings(dataclasses.replace(HEALTHY, rights=rights), NOW)
        assert any(f"no right to {what}" in item.what for item in found)


def test_a_report_fits_the_terminal() -> None:
    seen = dataclasses.replace(HEALTHY, crd=None, operators=[])
    lines = list(report(findings(seen, NOW), width=60))
    assert max(len(line) for line in lines) <= 60 or all(" " not in line.strip() for line in lines if len(line) > 60)
    assert any(line.startswith("✗ ") for line in lines)
