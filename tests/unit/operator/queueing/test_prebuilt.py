"""MultiKueue: the Workload of a job that another cluster runs, and its copy there."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest
from elasticjob_api import ConditionType, ElasticJob, Reason
from elasticjob_operator.planning import CreateObject, DeleteObject, PatchObject
from elasticjob_operator.queue_state import QueueView, Workload
from elasticjob_operator.queueing.bodies import MULTIKUEUE, PREBUILT
from elasticjob_operator.queueing.grant import grant
from elasticjob_operator.queueing.job import QueuedJob
from elasticjob_operator.queueing.prebuilt import in_manager_cluster
from elasticjob_operator.state import Kind, Pod, Rejection

from tests.unit.operator.builders import NAME, NOW, UID, at, make_pod, make_status
from tests.unit.operator.planning.plans import ADMITTED as ACCEPTED
from tests.unit.operator.planning.plans import ask, condition, names
from tests.unit.operator.queueing.test_grant import ADMITTED, HASH, PREEMPTED, TWO, base, queued_job, written


def queued(
    job: ElasticJob,
    *workloads: Workload,
    foreign: tuple[Workload, ...] = (),
    pods: list[Pod],
    missing_since: datetime.datetime | None = None,
) -> QueuedJob:
    return QueuedJob(
        job=job,
        view=QueueView(workloads=workloads, foreign=foreign, base_missing_since=missing_since),
        pods=pods,
        template_hash=HASH,
        etcd=None,
        accepted=True,
        now=NOW,
    )


def ready(count: int) -> ElasticJob:
    return queued_job().model_copy(update={"status": make_status(ready_replicas=count)})


@pytest.mark.parametrize(
    ("job", "workloads", "writes"),
    [
        (queued_job(), [], [f"create {NAME} 2"]),
        (queued_job(priority="missing"), [], []),
        (queued_job(), [base(terminating=True)], []),
        (queued_job(), [base()], []),
        (queued_job(), [base(count=3)], [f"patch {NAME} podSets"]),
        (queued_job(), [base(*ADMITTED, template_hash="h0")], [f"delete {NAME}"]),
        (queued_job(), [base(*ADMITTED)], []),
        # Its worker pods are in the other cluster, and its status is that of the copy.
        (ready(1), [base(*ADMITTED)], []),
        (ready(2), [base(*ADMITTED)], [f"status {NAME} PodsReady=True"]),
        (
            queued_job(),
            [base(*ADMITTED, more=(PREEMPTED,))],
            [f"status {NAME} QuotaReserved=False Admitted=False Requeued=True PodsReady=False"],
        ),
    ],
)
def test_base_of_a_job_that_another_cluster_runs_is_kept_here(
    job: ElasticJob, workloads: list[Workload], writes: list[str]
) -> None:
    assert written(tuple(in_manager_cluster(queued(job, *workloads, pods=[])))) == writes


@pytest.mark.parametrize(
    ("changes", "workloads", "created", "deleted"),
    [
        ({"managed_by": MULTIKUEUE}, [], [NAME], []),
        ({"managed_by": MULTIKUEUE, "suspend": True}, [base()], [], [NAME]),
        ({"managed_by": "example.com/other"}, [], [], []),
    ],
)
def test_nothing_but_the_base_is_created_for_a_job_that_another_cluster_runs(
    changes: dict[str, object], workloads: list[Workload], created: list[str], deleted: list[str]
) -> None:
    job = queued_job()
    job = job.model_copy(update={"spec": job.spec.model_copy(update=changes)})
    hashed = make_pod().template_hash
    made = tuple(dataclasses.replace(workload, template_hash=hashed) for workload in workloads)
    found = ask(job, queue=QueueView(workloads=made))
    assert len(found.actions) == len(created) + len(deleted)
    assert (names(found, CreateObject), names(found, DeleteObject)) == (created, deleted)
    assert (found.status, found.events) == (job.status, ()), "MultiKueue mirrors the status"


def copied(replicas: int = 4, *, queue: str = "team") -> ElasticJob:
    """As MultiKueue creates it in a worker cluster."""
    job = queued_job(replicas, queue=queue)
    labels = {**job.metadata.labels, PREBUILT: NAME}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": labels})})


def test_copy_takes_the_workload_that_came_with_it() -> None:
    found = grant(queued(copied(), foreign=(base(*ADMITTED, owner_uid=""),), pods=[]))
    (change,) = found.changes
    assert change.patch is not None
    metadata = change.patch["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (UID, True)
    assert metadata["labels"] == {"kueue.x-k8s.io/job-uid": UID, "elasticjob.dev/job-uid": UID}
    assert metadata["resourceVersion"] == "7"
    assert "spec" not in change.patch, "MultiKueue deletes a copy that differs"
    assert found.held


@pytest.mark.parametrize(
    ("unowned", "says"),
    [
        ([], "there is no Workload digits"),
        ([base(*ADMITTED, owner_uid="another")], "there is no Workload digits"),
        ([base(*ADMITTED, owner_uid="", template_hash="h0")], "another pod template"),
        ([base(*ADMITTED, "Finished", owner_uid="")], "counts as finished"),
        ([base(*ADMITTED, owner_uid="", count=1)], "fewer worker pods"),
        ([base(*ADMITTED, owner_uid="", queue="other")], "for LocalQueue other"),
        ([base(*ADMITTED, owner_uid="", pod_sets_json=b'[{"name":"other","count":2}]')], "podSet workers is missing"),
        # Not copied by MultiKueue.
        ([base(*ADMITTED, owner_uid="", pod_sets_json=b"[]")], "there is no Workload digits"),
    ],
)
@pytest.mark.parametrize("running", [False, True])
def test_copy_without_a_workload_that_fits_says_why_and_creates_none(
    unowned: list[Workload], says: str, running: bool
) -> None:
    pods = TWO if running else []
    job = copied().model_copy(update={"status": make_status(desired_replicas=len(pods) or None)})
    found = grant(queued(job, foreign=tuple(unowned), pods=pods))
    assert (found.queued.reason, written(found)) == (Reason.PREBUILT_WORKLOAD_UNUSABLE, [])
    assert says in found.queued.message
    assert found.held is not running, "a job that trains is not stopped at once"


def test_copy_that_trains_without_its_workload_stops_after_a_minute() -> None:
    job = copied().model_copy(update={"status": make_status(desired_replicas=2)})
    found = grant(queued(job, pods=TWO, missing_since=NOW - datetime.timedelta(seconds=60)))
    assert (found.held, found.queued.reason, written(found)) == (True, Reason.PREBUILT_WORKLOAD_UNUSABLE, [])


def test_workload_that_fits_no_longer_stops_the_copy_and_is_left_to_multikueue() -> None:
    found = grant(queued(copied(), base(*ADMITTED, template_hash="h0"), pods=TWO))
    assert (found.held, found.queued.reason, written(found)) == (True, Reason.PREBUILT_WORKLOAD_UNUSABLE, [])
    assert written(grant(queued(copied(), base(*ADMITTED, template_hash="h0"), pods=[]))) == []


@pytest.mark.parametrize("running", [False, True])
def test_workload_that_asks_for_less_stops_the_copy_unless_it_runs(running: bool) -> None:
    changed = base(*ADMITTED, "PodsReady", pod_sets_json=b"[]")
    found = grant(queued(copied(), changed, pods=TWO if running else []))
    assert found.held is not running
    assert "podSet workers is missing" in found.queued.message


def test_copy_that_shrinks_leaves_its_workload_as_it_is_because_multikueue_deletes_one_that_differs() -> None:
    found = grant(queued(copied(2), base(*ADMITTED, "PodsReady", count=3), pods=TWO))
    assert (found.replicas, written(found)) == (2, [])


def test_copy_grows_by_surplus_of_its_own() -> None:
    assert written(grant(queued(copied(), base(*ADMITTED, "PodsReady"), pods=TWO))) == [f"create {NAME}-surplus-0 1"]


def test_rejected_adoption_is_told_and_tried_again_later() -> None:
    hashed = make_pod().template_hash
    mine = base(*ADMITTED, owner_uid="", template_hash=hashed)
    rejection = Rejection(kinds=frozenset({Kind.WORKLOAD.value}), message="denied", retry_at=at(10), since=NOW)
    world: dict[str, Any] = {"queue": QueueView(foreign=(mine,)), "admission": ACCEPTED, "rejection": rejection}
    found = ask(copied(), **world)
    assert names(found, PatchObject) == []
    assert condition(found, ConditionType.QUEUED) == ("True", "WorkloadRejected")
    assert found.requeue_at == at(10)
    assert names(ask(copied(), seconds=10, **world), PatchObject) == [NAME]
