"""Plans of a job in a queue: what Kueue has admitted caps them, and one that must not run is planned as suspended."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_api import ConditionStatus, ConditionType, ElasticJob, Reason, RendezvousStatus
from elasticjob_operator.names import COMPONENT_ETCD, LABEL_WORKLOAD
from elasticjob_operator.planning import CreateObject, CreatePod, DeleteObject, DeletePod, PatchObject, PublishSpec
from elasticjob_operator.queue_state import Assignment, Flavor, QueueView, Workload
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.state import Connectivity, Kind, Pod, PodPhase, Rejection

from tests.unit.operator.builders import NAME, NOW, UID, at, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.planning.plans import ADMITTED as ACCEPTED
from tests.unit.operator.planning.plans import ask, condition, made, names, owned_object, published
from tests.unit.operator.queueing.test_grant import ADMITTED, PREEMPTED, base, queued_job, surplus

FLAVORS = {"spot": Flavor(node_labels={"pool": "spot"})}
TRAINS = (ConditionType.ACCEPTED, ConditionType.RUNNING)


def view(*workloads: Workload, problem: str = "") -> QueueView:
    hashed = make_pod().template_hash
    made = tuple(dataclasses.replace(workload, template_hash=hashed) for workload in workloads)
    return QueueView(workloads=made, flavors=FLAVORS, problem=problem)


def bound(count: int, *surplus: str, ready: bool = True) -> list[Pod]:
    workloads = [NAME] * count + [f"{NAME}-{name}" for name in surplus]
    return [dataclasses.replace(make_pod(index, ready=ready), workload=name) for index, name in enumerate(workloads)]


def training(job: ElasticJob, size: int = 2) -> ElasticJob:
    return job.model_copy(update={"status": make_status(*TRAINS, round=1, world_size=size, desired_replicas=size)})


def test_waiting_job_has_no_pod_and_no_etcd_and_says_what_it_waits_for() -> None:
    found = ask(queued_job(), queue=view(base()), admission=ACCEPTED)
    assert names(found, CreatePod) == []
    assert names(found, CreateObject) == []
    assert condition(found, ConditionType.QUEUED) == ("True", "WaitingForQuota")
    assert condition(found, ConditionType.SUSPENDED) == ("True", "WaitingForQuota")
    assert found.status.summary == "Queued"


def test_workload_is_created_only_once_the_api_server_accepts_the_worker_pods() -> None:
    assert names(ask(queued_job(), queue=view()), CreateObject) == []
    assert names(ask(queued_job(), queue=view(), admission=ACCEPTED), CreateObject) == [NAME]


def test_rejected_worker_pod_is_what_a_job_without_a_workload_waits_for() -> None:
    refused = dataclasses.replace(ACCEPTED, rejection="no PriorityClass with name nosuch")
    found = ask(queued_job(), queue=view(), admission=refused)
    assert condition(found, ConditionType.QUEUED) == ("True", "NotAccepted")
    assert found.status.summary == "PodRejected"
    assert [event.reason for event in found.events] == ["PodRejected"]


def test_admitted_job_starts_with_minimum_replicas_where_its_flavor_says() -> None:
    found = ask(queued_job(4, 2), queue=view(base(*ADMITTED)), admission=ACCEPTED)
    created = [action.body for action in made(found, CreatePod)]
    assert len(created) == 2
    for pod in created:
        assert pod["metadata"]["labels"][LABEL_WORKLOAD] == NAME
        assert pod["spec"]["nodeSelector"] == {"pool": "spot"}
        assert "kueue.x-k8s.io/queue-name" not in pod["metadata"]["labels"], "Kueue would gate the pod"
    assert condition(found, ConditionType.QUEUED) == ("False", "PartlyAdmitted")
    assert condition(found, ConditionType.DEGRADED) in (("", ""), ("False", "NotTraining"))


def test_no_worker_pod_is_created_before_its_flavor_is_known() -> None:
    """Workloads and flavors are watched apart: an admission may be known before a new flavor."""
    admitted = dataclasses.replace(view(base(*ADMITTED)), flavors={})
    found = ask(queued_job(4, 2), queue=admitted, admission=ACCEPTED)
    assert (names(found, CreatePod), names(found, CreateObject)) == ([], [])
    assert condition(found, ConditionType.QUEUED) == ("True", "WaitingForChecks")
    assert "ResourceFlavor spot" in found.status.condition(ConditionType.QUEUED).message  # type: ignore[union-attr]
    elsewhere = surplus(0, *ADMITTED, assignments={"workers": Assignment(flavors=("new",))})
    grows = ask(training(queued_job()), *bound(2), queue=view(base(*ADMITTED, "PodsReady"), elsewhere))
    assert names(grows, CreatePod) == []
    replaced = ask(training(queued_job()), *bound(1), queue=admitted)
    assert len(names(replaced, CreatePod)) == 1, "a job that trains is left alone"


def test_worker_pods_of_an_admitted_surplus_are_added_and_bound_to_it() -> None:
    found = ask(training(queued_job()), *bound(2), queue=view(base(*ADMITTED, "PodsReady"), surplus(0, *ADMITTED)))
    (created,) = [action.body for action in made(found, CreatePod)]
    assert created["metadata"]["labels"][LABEL_WORKLOAD] == f"{NAME}-surplus-0"


def test_replacement_belongs_to_the_workload_of_the_pod_that_was_lost() -> None:
    pods = [pod for pod in bound(2, "surplus-0") if pod.index != 1]
    found = ask(training(queued_job(3), 3), *pods, queue=view(base(*ADMITTED), surplus(0, *ADMITTED)))
    (created,) = [action.body for action in made(found, CreatePod)]
    assert created["metadata"]["labels"][LABEL_WORKLOAD] == NAME


def test_evicted_surplus_leaves_by_a_planned_shrink_even_if_its_pod_is_the_healthiest() -> None:
    job = training(queued_job(3), 3)
    pods = bound(2, "surplus-0")
    pods[0] = dataclasses.replace(pods[0], ready=False)
    known = make_view(plan=make_plan(1, size=3), spec=published(job), connectivity=Connectivity.REACHABLE)
    workloads = view(base(*ADMITTED, "PodsReady"), surplus(0, *ADMITTED, more=(PREEMPTED,)))
    found = ask(job, *pods, queue=workloads, rendezvous=known)
    (spec,) = [action.spec for action in made(found, PublishSpec)]
    assert list(spec.draining) == [pods[2].name]
    assert names(found, DeletePod) == [], "the agents must know first"
    then = dataclasses.replace(known, spec=published(job, pods[2].name))
    assert names(ask(job, *pods, queue=workloads, rendezvous=then), DeletePod) == [pods[2].name]
    assert condition(found, ConditionType.QUEUED) == ("False", "SurplusEvicted")


def test_worker_pod_whose_label_was_changed_leaves_first_and_is_replaced() -> None:
    job = training(queued_job(3), 3)
    pods = bound(2, "surplus-0")
    pods[1] = dataclasses.replace(pods[1], workload="nothing")
    known = make_view(plan=make_plan(1, size=3), spec=published(job, pods[1].name), connectivity=Connectivity.REACHABLE)
    workloads = view(base(*ADMITTED, "PodsReady"), surplus(0, *ADMITTED, "PodsReady"))
    found = ask(job, *pods, queue=workloads, rendezvous=known)
    assert names(found, DeletePod) == [pods[1].name]
    (created,) = [action.body for action in made(found, CreatePod)]
    assert created["metadata"]["labels"][LABEL_WORKLOAD] == NAME


def test_evicted_surplus_leaves_and_the_base_gets_its_missing_pod_although_their_numbers_would_match() -> None:
    job = training(queued_job(3), 2)
    pods = bound(1, "surplus-0")
    known = make_view(plan=make_plan(1, size=2), spec=published(job, pods[1].name), connectivity=Connectivity.REACHABLE)
    workloads = view(base(*ADMITTED, "PodsReady"), surplus(0, *ADMITTED, more=(PREEMPTED,)))
    found = ask(job, *pods, queue=workloads, rendezvous=known)
    assert names(found, DeletePod) == [pods[1].name]
    (created,) = [action.body for action in made(found, CreatePod)]
    assert created["metadata"]["labels"][LABEL_WORKLOAD] == NAME


@pytest.mark.parametrize("replaced", [False, True])
def test_smaller_job_gives_back_part_of_a_surplus_even_while_its_base_replaces_a_worker_pod(replaced: bool) -> None:
    """Otherwise, the base would lack a worker pod for good, and an eviction of the surplus would stop the training."""
    job = training(queued_job(3), 4)
    pods = bound(2, "surplus-0", "surplus-0")
    leaves = pods[3].name
    pods[1:2] = [] if replaced else [dataclasses.replace(pods[1], phase=PodPhase.PENDING, ready=False)]
    known = make_view(plan=make_plan(1, size=4), spec=published(job, leaves), connectivity=Connectivity.REACHABLE)
    workloads = view(base(*ADMITTED, "PodsReady"), surplus(0, *ADMITTED, "PodsReady", count=2))
    found = ask(job, *pods, queue=workloads, rendezvous=known)
    assert names(found, DeletePod) == [leaves]
    created = [
        action.body["metadata"]["labels"][LABEL_WORKLOAD] for action in found.actions if isinstance(action, CreatePod)
    ]
    assert created == ([NAME] if replaced else [])
    rest = [pod for pod in bound(2, "surplus-0", "surplus-0") if pod.name != leaves]
    (patch,) = [action.name for action in ask(job, *rest, queue=workloads).actions if isinstance(action, PatchObject)]
    assert patch == f"{NAME}-surplus-0"


def test_preempted_job_is_stopped_and_its_quota_given_back_after_its_last_pod() -> None:
    workloads = view(base(*ADMITTED, more=(PREEMPTED,)))
    job = training(queued_job())
    found = ask(job, *bound(2), queue=workloads)
    assert [action.reason for action in made(found, DeletePod)] == [
        "the job waits in its queue",
        "the job waits in its queue",
    ]
    assert names(found, PatchObject) == []
    assert condition(found, ConditionType.QUEUED) == ("True", "Evicted")
    assert condition(found, ConditionType.RUNNING) == ("False", "Suspending")
    ending = [dataclasses.replace(pod, deletion_timestamp=at(30)) for pod in bound(2)]
    assert names(ask(job, *ending, queue=workloads), PatchObject) == []
    assert names(ask(job, queue=workloads, admission=ACCEPTED), PatchObject) == [NAME]


ETCD = dataclasses.replace(make_pod(9), name="digits-etcd-0", uid="etcd", component=COMPONENT_ETCD, index=-1)


@pytest.mark.parametrize(
    ("etcd", "given_back"),
    [
        ([ETCD], []),
        ([dataclasses.replace(ETCD, deletion_timestamp=at(30))], []),
        ([dataclasses.replace(ETCD, phase=PodPhase.SUCCEEDED)], [NAME]),
        ([], [NAME]),
    ],
)
def test_quota_of_the_base_is_given_back_after_the_jobs_own_etcd_has_ended(
    etcd: list[Pod], given_back: list[str]
) -> None:
    """It is one of the base's podSets."""
    evicted = view(base(*ADMITTED, more=(PREEMPTED,)))
    assert names(ask(queued_job(), *etcd, queue=evicted, admission=ACCEPTED), PatchObject) == given_back
    changed = QueueView(workloads=(base(*ADMITTED, template_hash="h0"),))
    assert names(ask(queued_job(), *etcd, queue=changed, admission=ACCEPTED), DeleteObject) == given_back
    suspended = queued_job(suspend=True)
    workloads = view(base(*ADMITTED), surplus(0, *ADMITTED))
    assert names(ask(suspended, *etcd, queue=workloads, admission=ACCEPTED), DeleteObject) == [
        *given_back,
        f"{NAME}-surplus-0",
    ]
    status = make_status(ConditionType.ACCEPTED, ConditionType.SUCCEEDED, completion_time=NOW)
    finished = queued_job().model_copy(update={"status": status})
    assert names(ask(finished, *etcd, queue=view(base(*ADMITTED))), PatchObject) == given_back


def test_quota_of_the_base_is_not_given_back_in_the_plan_that_deletes_the_etcd() -> None:
    known = owned_object(Kind.STATEFUL_SET, etcd_stateful_set(make_job(), "etcd"))
    evicted = view(base(*ADMITTED, more=(PREEMPTED,)))
    objects = {(known.kind, known.name): known}
    known_keys = make_view(connectivity=Connectivity.REACHABLE)
    found = ask(queued_job(), queue=evicted, admission=ACCEPTED, objects=objects, rendezvous=known_keys)
    assert (names(found, DeleteObject), names(found, PatchObject)) == ([known.name], [])
    ending = {key: dataclasses.replace(item, terminating=True) for key, item in objects.items()}
    assert names(ask(queued_job(), queue=evicted, admission=ACCEPTED, objects=ending), PatchObject) == [NAME]


def test_job_that_is_admitted_again_while_it_stops_has_stopped_for_its_eviction() -> None:
    stopping = ask(training(queued_job()), *bound(2), queue=view(base(*ADMITTED, more=(PREEMPTED,)))).status
    job = queued_job().model_copy(update={"status": stopping})
    found = ask(job, queue=view(base(*ADMITTED)), admission=ACCEPTED)
    assert condition(found, ConditionType.SUSPENDED) == ("True", "Evicted")
    assert condition(found, ConditionType.QUEUED) == ("False", "PartlyAdmitted")
    assert found.status.history is not None
    last = found.status.history.read().changes[-1]
    assert (last.type, last.reason, "is evicted" in last.message) == ("Suspended", "Evicted", True)


def test_job_without_kueue_waits_unless_it_trains() -> None:
    waiting = ask(queued_job(), queue=view(problem="not served"), admission=ACCEPTED)
    assert condition(waiting, ConditionType.QUEUED) == ("True", "QueueUnavailable")
    found = ask(training(queued_job()), *bound(2), queue=view(problem="not served"))
    assert names(found, DeletePod) == []
    assert condition(found, ConditionType.QUEUED) == ("False", "QueueUnavailable")


def test_rejected_workload_is_told_and_tried_again_later() -> None:
    rejection = Rejection(kinds=frozenset({Kind.WORKLOAD.value}), message="webhook down", retry_at=at(10), since=NOW)
    found = ask(queued_job(), queue=view(), admission=ACCEPTED, rejection=rejection)
    assert names(found, CreateObject) == []
    assert condition(found, ConditionType.QUEUED) == ("True", "WorkloadRejected")
    assert " webhook down. What to do: " in found.status.condition(ConditionType.QUEUED).message  # type: ignore[union-attr]
    assert found.requeue_at == at(10)
    assert names(ask(queued_job(), seconds=10, queue=view(), admission=ACCEPTED, rejection=rejection), CreateObject)


def test_rejected_workload_is_told_only_while_it_is_missing() -> None:
    """Someone else may have made room for it, or put it right."""
    rejection = Rejection(
        kinds=frozenset({Kind.WORKLOAD.value}), message="its name is taken", retry_at=at(10), since=NOW
    )
    there = ask(queued_job(), queue=view(base()), admission=ACCEPTED, rejection=rejection)
    assert condition(there, ConditionType.QUEUED) == ("True", "WaitingForQuota")
    grows = view(base(*ADMITTED, "PodsReady"))
    found = ask(training(queued_job(3)), *bound(2), queue=grows, rejection=rejection)
    assert condition(found, ConditionType.QUEUED) == ("False", "WorkloadRejected"), "a surplus"
    missing = dataclasses.replace(view(), base_missing_since=at(-60))
    stops = ask(training(queued_job()), *bound(2), queue=missing, rejection=rejection)
    assert condition(stops, ConditionType.QUEUED) == ("True", "WorkloadRejected")
    assert len(names(stops, DeletePod)) == 2


@pytest.mark.parametrize("queue", [None, view(base())])
def test_job_without_the_label_and_an_operator_without_queues_run_at_once(queue: QueueView | None) -> None:
    job = queued_job(queue="" if queue is not None else "team")
    found = ask(job, queue=queue, admission=ACCEPTED)
    assert len(names(found, CreatePod)) == 4
    assert found.status.condition(ConditionType.QUEUED) is None


def test_job_that_leaves_its_queue_keeps_running_and_says_so() -> None:
    job = queued_job(queue="", replicas=2)
    job = job.model_copy(update={"status": make_status(*TRAINS, ConditionType.QUEUED, round=1, world_size=2)})
    found = ask(job, *bound(2), queue=view(base(*ADMITTED)))
    assert names(found, DeletePod) == []
    assert names(found, DeleteObject) == [NAME]
    assert condition(found, ConditionType.QUEUED) == ("False", "NotQueued")


def test_finished_job_tells_its_queue_and_the_condition_ends() -> None:
    status = make_status(ConditionType.ACCEPTED, ConditionType.SUCCEEDED, completion_time=NOW)
    job = queued_job().model_copy(update={"status": status})
    found = ask(job, queue=view(base(*ADMITTED)))
    (patch,) = [action.patch for action in made(found, PatchObject)]
    ended = [condition for condition in patch["status"]["conditions"] if condition["type"] == "Finished"]
    assert [(item["status"], item["reason"]) for item in ended] == [("True", "Succeeded")]


def test_missing_priority_class_is_a_warning() -> None:
    found = ask(queued_job(priority="nosuch"), queue=view(), admission=ACCEPTED)
    assert ("PriorityClassMissing", True) in [(event.reason, event.warning) for event in found.events]
    assert found.status.summary == "Queued"


def test_every_reason_of_a_wait_names_queue_and_remedy() -> None:
    for workloads in ((), (base(),), (base("QuotaReserved"),), (base(active=False),)):
        found = ask(queued_job(), queue=view(*workloads), admission=ACCEPTED)
        said = found.status.condition(ConditionType.QUEUED)
        assert said is not None
        assert said.status is ConditionStatus.TRUE
        assert "team" in said.message
        assert "What to do: " in said.message, Reason(said.reason)


@pytest.mark.parametrize(("run", "reason"), [(1, "JobStarted"), (2, "JobResumed")])
def test_job_that_has_waited_starts_and_one_that_was_evicted_resumes(run: int, reason: str) -> None:
    waits = make_status(ConditionType.SUSPENDED, reason="WaitingForQuota")
    rendezvous = RendezvousStatus(id=f"{UID}-{run}", endpoint="etcd:2379")
    status = waits.model_copy(update={"rendezvous": rendezvous})
    job = queued_job().model_copy(update={"status": status})
    found = ask(job, *[make_pod(index, run=run) for index in range(2)], queue=view(base(*ADMITTED)))
    assert condition(found, ConditionType.SUSPENDED) == ("False", reason)
    assert [event.reason for event in found.events if event.reason == reason] == [reason]
