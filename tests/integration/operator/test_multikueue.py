"""A job of one cluster that runs in another: its Workload in both, checked by the CRD of Kueue. The test acts as Kueue
and as MultiKueue do; a namespace stands for each cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.loopback import ControlPlane
from hack.support import eventually
from tests.integration.operator.conftest import TEMPLATE, namespace, rfc3339
from tests.integration.operator.kube import Json, Kube, Namespace
from tests.integration.operator.optional_crds import crds_of_kueue, installed
from tests.integration.operator.process import Operator
from tests.integration.operator.queue import MULTIKUEUE, ORIGIN, PREBUILT, QUEUE
from tests.integration.operator.shared import running

LONG = 90.0
JOB_UID = "kueue.x-k8s.io/job-uid"


@pytest.fixture(scope="module")
def operator(
    kube: Kube, control_plane_server: ControlPlane, control_plane: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """Of both clusters."""
    assert kube  # with the CRD of ElasticJobs
    folder, crds = tmp_path_factory.mktemp("operator"), ("workloads", "resourceflavors", "workloadpriorityclasses")
    with (
        installed(control_plane_server, *crds_of_kueue(*crds)),
        running(control_plane, folder, ELASTICJOB_KUEUE="auto") as operator,
    ):
        yield operator


@pytest.fixture
def worker_cluster(kube: Kube) -> Iterator[Namespace]:
    with namespace(kube) as made:
        yield made


def manifest(labels: dict[str, str], **spec: Any) -> Json:
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "digits", "labels": {QUEUE: "research", **labels}},
        "spec": {
            "workers": {"replicas": 3, "minReplicas": 2, "template": TEMPLATE},
            "scheduling": {"priorityClassName": "system-cluster-critical"},
            **spec,
        },
    }


def copy_of(workload: Json) -> Json:
    """As MultiKueue makes it: without owner, and without the label by which Kueue finds a job's Workloads."""
    metadata = workload["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != JOB_UID}
    return {
        "apiVersion": workload["apiVersion"],
        "kind": "Workload",
        "metadata": {"name": metadata["name"], "labels": {**labels, ORIGIN: "multikueue"}},
        "spec": workload["spec"],
    }


def admit(ns: Namespace, workload: Json) -> None:
    """As Kueue does."""
    conditions = [
        {"type": type_, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": rfc3339()}
        for type_ in ("QuotaReserved", "Admitted")
    ]
    assignments = [{"name": pod_set["name"], "count": pod_set["count"]} for pod_set in workload["spec"]["podSets"]]
    admission = {"clusterQueue": "research", "podSetAssignments": assignments}
    ns.patch("workloads", "digits", {"status": {"admission": admission, "conditions": conditions}}, "status")


@pytest.mark.usefixtures("operator")
def test_job_of_a_manager_cluster_runs_by_the_workload_that_multikueue_copies(
    ns: Namespace, worker_cluster: Namespace
) -> None:
    ns.create("elasticjobs", manifest({}, managedBy=MULTIKUEUE))
    here = eventually(lambda: ns.get("workloads", "digits"), LONG, what="a Workload in the manager cluster")
    assert here
    assert here["spec"]["priority"] == 2_000_000_000, "that of the pods' class, without one of the queue"
    assert here["spec"]["priorityClassRef"]["kind"] == "PriorityClass"

    worker_cluster.create("workloads", copy_of(here))
    worker_cluster.create("elasticjobs", manifest({PREBUILT: "digits", ORIGIN: "multikueue"}))
    uid = worker_cluster.job("digits")["metadata"]["uid"]

    def owned() -> Json | None:
        found = worker_cluster.get("workloads", "digits")
        owners = found["metadata"].get("ownerReferences", []) if found else []
        return found if [(owner["uid"], owner["controller"]) for owner in owners] == [(uid, True)] else None

    there = eventually(owned, LONG, what="the copy of the job owns the copy of the Workload")
    assert there
    assert there["spec"] == here["spec"], "MultiKueue deletes a copy that differs"
    assert not worker_cluster.workers()
    assert list(worker_cluster.all("workloads")) == ["digits"]
    admit(worker_cluster, there)
    eventually(lambda: len(worker_cluster.workers()) == 2, LONG, what="worker pods in the worker cluster")
    assert not ns.all("pods")
    assert not ns.events("digits")


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    "removed",
    [{"labels": {"elasticjob.dev/job-name": None}}, {"ownerReferences": None}],
    ids=["label", "owner"],
)
def test_workload_whose_labels_or_owner_are_removed_by_hand_gets_them_back(ns: Namespace, removed: Json) -> None:
    """Otherwise, the job would not see that it is evicted."""
    ns.create("elasticjobs", manifest({}))
    made = eventually(lambda: ns.get("workloads", "digits"), LONG, what="a Workload")
    assert made

    def is_whole() -> bool:
        found = ns.get("workloads", "digits")
        assert found
        return all(found["metadata"].get(key) == made["metadata"][key] for key in ("uid", "labels", "ownerReferences"))

    ns.patch("workloads", "digits", {"metadata": removed})
    eventually(is_whole, LONG, what="it is as it was")
