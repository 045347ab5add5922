"""Plans of a new job, and what is created or patched while it runs."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
from elasticjob_api import ConditionType, RendezvousStatus, Status
from elasticjob_operator.names import LABEL_INDEX
from elasticjob_operator.planning import CreateObject, CreatePod, DryRunCreate, PatchObject
from elasticjob_operator.resources.pods import worker_pod
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Kind, Rejection

from tests.unit.operator.builders import NOW, UID, at, make_job, make_plan, make_pod, make_view
from tests.unit.operator.planning.plans import (
    ADMITTED,
    METRICS,
    ask,
    condition,
    kinds,
    made,
    names,
    owned,
    said,
    target_of,
    trained,
)


def test_a_dry_run_create_comes_before_anything_else() -> None:
    found = ask(make_job())
    assert kinds(found) == ["DryRunCreate"]
    assert found.requeue_at == NOW
    assert found.status == Status()


def test_pods_services_and_etcd_are_created_together() -> None:
    found = ask(make_job(replicas=3), admission=ADMITTED, settings=Settings())
    assert names(found, CreatePod) == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    assert sorted(names(found, CreateObject)) == ["digits", "digits-etcd", "digits-etcd"]
    assert condition(found, ConditionType.ACCEPTED) == ("True", "Accepted")
    assert condition(found, ConditionType.RUNNING) == ("False", "WaitingForWorkers")
    assert found.status.rendezvous == RendezvousStatus(
        id=f"{UID}-1",
        backend="etcd-v3",
        endpoint="https://digits-etcd.ml.svc:2379",
        template_hash=ADMITTED.template_hash,
        template_generation=1,
    )
    assert (target_of(found).endpoint, target_of(found).tls) == ("https://digits-etcd.ml.svc:2379", True)


def test_no_etcd_is_created_if_the_job_names_an_endpoint() -> None:
    assert names(ask(make_job(), admission=ADMITTED), CreateObject) == ["digits"]


def test_nothing_is_created_from_a_template_that_the_server_rejects() -> None:
    refused = dataclasses.replace(ADMITTED, rejection="spec.containers[0].image: Required value", invalid=True)
    found = ask(make_job(), admission=refused)
    assert kinds(found) == []
    assert condition(found, ConditionType.ACCEPTED) == ("False", "InvalidPodTemplate")
    assert found.requeue_at == at(30)
    assert [event.warning for event in found.events] == [True]


def test_nothing_is_created_from_a_template_without_the_named_container() -> None:
    found = ask(make_job(workers={"container": "absent"}))
    assert kinds(found) == []
    assert condition(found, ConditionType.ACCEPTED) == ("False", "InvalidPodTemplate")


def test_an_exceeded_quota_is_shown_and_retried_after_a_delay() -> None:
    rejection = Rejection(kinds=frozenset({"Pod"}), message="exceeded quota", retry_at=at(8))
    found = ask(trained(), make_pod(0), make_pod(1), rendezvous=make_view(plan=make_plan()), rejection=rejection)
    assert names(found, CreatePod) == []
    assert found.requeue_at == at(8)
    assert "exceeded quota" in said(found, ConditionType.RUNNING)
    assert names(ask(trained(), make_pod(0), seconds=8, rejection=rejection), CreatePod) == [
        "digits-worker-1",
        "digits-worker-2",
        "digits-worker-3",
    ]


def test_a_rejection_is_not_shown_once_nothing_is_missing() -> None:
    """The quota refused two more, and the job was scaled down again: nothing is created that would show that it may
    be."""
    rejection = Rejection(kinds=frozenset({"Pod"}), message="exceeded quota", retry_at=at(8))
    objects = owned(ask(make_job(), admission=ADMITTED))
    pods, view = [make_pod(0), make_pod(1)], make_view(plan=make_plan(size=2))
    found = ask(trained(replicas=2), *pods, rendezvous=view, rejection=rejection, objects=objects)
    assert "quota" not in said(found, ConditionType.RUNNING)
    assert found.requeue_at is None


def test_workers_are_created_although_the_autoscaler_is_rejected() -> None:
    rejection = Rejection(
        kinds=frozenset({"HorizontalPodAutoscaler"}), message="spec.metrics[0].type: Invalid value", retry_at=at(8)
    )
    job = trained(replicas=2, spec={"scaling": {"metrics": METRICS}})
    found = ask(job, make_pod(0), rendezvous=make_view(plan=make_plan(size=2)), rejection=rejection)
    assert names(found, CreatePod) == ["digits-worker-1"]
    assert [action.kind for action in made(found, CreateObject)] == [Kind.SERVICE]
    assert found.requeue_at == at(8)


def test_an_object_edited_by_hand_is_restored() -> None:
    job = trained()
    first = ask(make_job(), admission=ADMITTED)
    objects = owned(first)
    (key,) = objects
    edited = {**objects[key].body, "spec": {**objects[key].body["spec"], "selector": {"wrong": "pods"}}}
    pods = [make_pod(index) for index in range(4)]
    found = ask(job, *pods, objects={key: dataclasses.replace(objects[key], json=orjson.dumps(edited))})
    assert names(found, PatchObject) == ["digits"]


def test_a_new_default_image_does_not_restart_etcd() -> None:
    first = ask(make_job(), admission=ADMITTED, settings=Settings(etcd_image="etcd:1"))
    found = ask(
        trained(),
        *[make_pod(index) for index in range(4)],
        objects=owned(first),
        settings=Settings(etcd_image="etcd:2"),
    )
    assert names(found, PatchObject) == []


@pytest.mark.parametrize(
    ("manager", "touched"), [("", True), ("elasticjob.dev/operator", True), ("kueue.x-k8s.io/multikueue", False)]
)
def test_a_job_managed_by_another_controller_is_left_alone(manager: str, touched: bool) -> None:
    assert bool(ask(make_job(spec={"managedBy": manager})).actions) is touched


def test_a_job_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    job = make_job()
    deleting = job.model_copy(update={"metadata": job.metadata.model_copy(update={"deletion_timestamp": NOW})})
    found = ask(deleting, make_pod(0))
    assert (found.actions, found.events, found.status) == ((), (), deleting.status)


def test_a_job_in_a_terminating_namespace_is_left_alone_and_says_so() -> None:
    found = ask(trained(), make_pod(0), namespace_terminating=True)
    assert (found.actions, found.events, found.requeue_at) == ((), (), None)
    assert found.status.summary == "NamespaceTerminating"
    assert found.target is not None, "its keys in a user's etcd are still to be cleared"


def test_every_action_has_a_reason() -> None:
    found = ask(make_job(), admission=ADMITTED, settings=Settings())
    assert all(action.reason for action in (*found.actions, *ask(make_job()).actions))
    assert any(isinstance(action, DryRunCreate) for action in ask(make_job()).actions)


@pytest.mark.parametrize("backend", ["etcd-v3", "c10d"])
def test_worker_pods_share_what_they_have_in_common(backend: str) -> None:
    job = make_job(replicas=8, spec={"rendezvous": {"backend": backend}})
    found = ask(job, admission=ADMITTED)
    pods = [action.body for action in made(found, CreatePod)]
    assert len({pod["metadata"]["name"] for pod in pods}) == 8
    for index, pod in enumerate(pods):
        assert pod["metadata"]["labels"][LABEL_INDEX] == str(index)
        assert pod["spec"]["hostname"] == f"digits-worker-{index}"
        alone = worker_pod(
            job,
            index=index,
            run=1,
            endpoint=found.status.rendezvous.endpoint if found.status.rendezvous else "",
            name=pod["metadata"]["name"],
        )
        assert pod == alone, "as if each were made by itself"
    assert all(pod["spec"]["containers"] is pods[1]["spec"]["containers"] for pod in pods[2:])
