"""What is written to a Workload, and what is read of its admission checks."""

from __future__ import annotations

import datetime

import pytest
from elasticjob_operator.kube.queue_convert import workload_of
from elasticjob_operator.names import LABEL_WORKLOAD_PART
from elasticjob_operator.queue_state import Workload
from elasticjob_operator.queueing.patches import release

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("evicted", "requeued"),
    [
        ("Preempted", ("True", "Preempted")),
        ("NodeFailures", ("True", "NodeFailures")),
        ("ClusterQueueStopped", ("False", "ClusterQueueStopped")),
        ("Deactivated", ("False", "Deactivated")),
        ("DeactivatedDueToAdmissionCheck", ("False", "Deactivated")),
    ],
)
def test_a_released_workload_says_when_kueue_may_admit_it_again(evicted: str, requeued: tuple[str, str]) -> None:
    conditions = ({"type": "Evicted", "status": "True", "reason": evicted, "message": "why"},)
    patch = release(Workload(name="a", uid="u", owner_uid="o", version="1", conditions=conditions), NOW)
    written = {condition["type"]: condition for condition in patch["status"]["conditions"]}
    assert patch["status"]["admission"] is None
    assert (written["Requeued"]["status"], written["Requeued"]["reason"]) == requeued
    assert written["QuotaReserved"]["status"] == written["Admitted"]["status"] == "False"


def test_condition_keeps_its_time_unless_its_status_changes() -> None:
    before = "2025-12-31T00:00:00Z"
    conditions = tuple(
        {"type": type_, "status": status, "lastTransitionTime": before}
        for type_, status in (("QuotaReserved", "True"), ("PodsReady", "False"))
    )
    found = Workload(name="a", uid="u", owner_uid="o", version="1", generation=4, conditions=conditions)
    written = {condition["type"]: condition for condition in release(found, NOW)["status"]["conditions"]}
    assert written["PodsReady"]["lastTransitionTime"] == before
    assert written["QuotaReserved"]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert written["QuotaReserved"]["observedGeneration"] == 4


def test_admission_checks_that_are_not_ready_are_named() -> None:
    checks = [
        {"name": "budget", "state": "Pending", "message": "asks finance"},
        {"name": "nodes", "state": "Ready"},
        {"name": "cluster", "state": "Retry"},
    ]
    body = {
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "labels": {LABEL_WORKLOAD_PART: "base"}},
        "spec": {"queueName": "team"},
        "status": {"admissionChecks": checks},
    }
    assert workload_of(body).unanswered == ("budget (Pending: asks finance)", "cluster (Retry)")
