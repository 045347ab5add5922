"""Plans when nodes are silent, not ready or gone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_api import ConditionType, ElasticJob, Reason, RendezvousStatus
from elasticjob_operator.node_state import NodeHealth
from elasticjob_operator.planning import CreatePod, DeletePod, EvictMember, PatchPod, Plan, PublishSpec, ReadHeartbeat
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, Pod

from tests.unit.operator.builders import (
    NOW,
    UID,
    at,
    make_heartbeat,
    make_job,
    make_node,
    make_plan,
    make_pod,
    make_view,
)
from tests.unit.operator.planning.plans import ADMITTED, ask, condition, made, names, published, rendezvous_in, trained

SILENT_NODES = {"good": make_node("good"), "bad": make_node("bad", NodeHealth.SILENT, since=-5)}


OLD_LEASE = {"bad": make_heartbeat()}


def test_a_pod_on_a_lost_node_is_deleted_by_force_and_its_member_evicted() -> None:
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad"))
    found = ask(trained(), *pods, nodes=SILENT_NODES, heartbeats=OLD_LEASE, rendezvous=make_view(plan=make_plan()))
    (delete,) = made(found, DeletePod)
    assert (delete.name, delete.force) == ("digits-worker-3", True)
    assert names(found, EvictMember) == ["digits-worker-3"]
    assert found.status.restarts.total == 0, "node loss is free"


def test_the_heartbeat_is_read_before_pods_are_deleted_by_force() -> None:
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad"))
    found = ask(trained(), *pods, nodes=SILENT_NODES, rendezvous=make_view(plan=make_plan()))
    assert [action.node for action in made(found, ReadHeartbeat)] == ["bad"]
    assert not made(found, DeletePod, EvictMember)
    assert found.requeue_at == NOW


NOT_READY_NODES = {"good": make_node("good"), "bad": make_node("bad", NodeHealth.NOT_READY, since=-3600)}


def test_training_survives_a_restart_of_a_kubelet() -> None:
    """Its node is not ready meanwhile, and its pods go on. Kubernetes evicts them once they no longer tolerate that."""
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad"))
    found = ask(trained(), *pods, nodes=NOT_READY_NODES, rendezvous=make_view(plan=make_plan()))
    assert names(found, DeletePod) == names(found, CreatePod) == names(found, EvictMember) == []


@pytest.mark.parametrize("nodes", [NOT_READY_NODES, {"good": make_node("good"), "bad": make_node("bad")}, None])
def test_a_replacement_never_waits_for_the_end_of_the_pod(nodes: dict[str, Any] | None) -> None:
    """Nor is that pod deleted by force, however long it takes. It gives up the host name."""
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad", deletion_timestamp=-9999))
    found = ask(trained(), *pods, nodes=nodes, rendezvous=make_view(plan=make_plan()))
    assert (names(found, CreatePod), names(found, DeletePod)) == (["digits-worker-3"], [])
    (patch,) = made(found, PatchPod)
    assert (patch.uid, patch.patch) == ("pod-3-0", {"metadata": {"labels": {"elasticjob.dev/job-uid": None}}})
    replaced = (*pods[:3], dataclasses.replace(pods[3], in_dns=False), make_pod(3, incarnation=1))
    after = ask(trained(), *replaced, nodes=nodes, rendezvous=make_view(plan=make_plan()))
    assert names(after, CreatePod) == names(after, DeletePod) == names(after, PatchPod) == []
    assert (after.status.replicas, after.status.ready_replicas) == (4, 4)


def test_the_name_of_a_replacement_is_new_unless_its_creation_may_have_succeeded() -> None:
    pods = [make_pod(index) for index in range(3)]
    first, later = (ask(trained(), *pods, seconds=at_, rendezvous=make_view(plan=make_plan())) for at_ in (0, 1))
    again = ask(trained(), *pods, rendezvous=make_view(plan=make_plan()), unconfirmed={3: "digits-worker-3-zzzzz"})

    def name(found: Plan) -> str:
        (create,) = made(found, CreatePod)
        return str(create.body["metadata"]["name"])

    assert name(first) != name(later)
    assert name(again) == "digits-worker-3-zzzzz"


def test_the_second_pod_of_an_index_leaves_its_group_before_it_is_deleted() -> None:
    """An earlier leader's request may arrive late."""
    pods = [*(make_pod(index, created=-9) for index in range(4)), make_pod(2, incarnation=1, created=-1)]
    found = ask(trained(), *pods, rendezvous=make_view(plan=make_plan(), spec=published(trained())))
    assert names(found, DeletePod) == []
    (action,) = made(found, PublishSpec)
    assert action.spec.draining == ["digits-worker-2-1"]
    found = ask(trained(), *pods, rendezvous=make_view(plan=make_plan(), spec=action.spec))
    (delete,) = made(found, DeletePod)
    assert (delete.uid, delete.force, delete.reason) == ("pod-2-1", False, "another pod has its index")


@pytest.mark.parametrize("node", ["bad", "good"])
def test_a_consistent_job_keeps_pods_on_a_silent_node_and_says_so(node: str) -> None:
    job = trained(spec={"rendezvous": {"onPartition": "Consistent"}})
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node=node, ready=node == "good"))
    found = ask(job, *pods, nodes=SILENT_NODES, heartbeats=OLD_LEASE, rendezvous=make_view(plan=make_plan(size=3)))
    assert not made(found, DeletePod, EvictMember, ReadHeartbeat)
    (published,) = made(found, PublishSpec)
    assert published.spec.on_partition == "Consistent"
    if node == "bad":
        assert condition(found, ConditionType.DEGRADED) == ("True", "NodeSilent")
        (event,) = [event for event in found.events if event.reason is Reason.NODE_SILENT]
        assert event.warning
        assert "out-of-service" in event.message


def etcd_pod(node: str, uid: str = "e") -> Pod:
    return dataclasses.replace(make_pod(0, node=node), name="digits-etcd-0", uid=uid, component="etcd", index=-1)


def with_store(job: ElasticJob, generation: int | None, pod: str) -> ElasticJob:
    rendezvous = RendezvousStatus(
        id=f"{UID}-1", backend="etcd-v3", endpoint="digits-etcd.ml.svc:2379", store_generation=generation, store_pod=pod
    )
    return job.model_copy(update={"status": job.status.model_copy(update={"rendezvous": rendezvous})})


def test_a_lost_etcd_is_superseded_before_it_is_deleted_by_force() -> None:
    """A group that goes on with it, behind a partition, must never pass for the newer one."""
    pods = [make_pod(index, node="good") for index in range(4)]
    world: dict[str, Any] = {
        "nodes": SILENT_NODES,
        "heartbeats": OLD_LEASE,
        "settings": Settings(),
        "rendezvous": make_view(Connectivity.UNREACHABLE),
    }
    job = with_store(trained(), 1, "e")
    first = ask(job, *pods, etcd_pod("bad"), **world)
    assert (rendezvous_in(first).store_generation, rendezvous_in(first).store_pod) == (2, "")
    assert not made(first, DeletePod)
    assert first.requeue_at == NOW
    written = job.model_copy(update={"status": first.status})
    second = ask(written, *pods, etcd_pod("bad"), **world)
    (delete,) = made(second, DeletePod)
    assert (delete.name, delete.force) == ("digits-etcd-0", True)
    assert second.status.rendezvous == first.status.rendezvous, "counted once"
    third = ask(written, *pods, etcd_pod("good", uid="e2"), **{**world, "rendezvous": make_view()})
    (published,) = made(third, PublishSpec)
    assert published.spec.store_generation == 2
    assert (rendezvous_in(third).store_generation, rendezvous_in(third).store_pod) == (2, "e2")


def test_etcd_on_a_silent_node_is_replaced_before_the_workers_there() -> None:
    """Training stands still until there is an etcd to plan in, and the other etcd's number keeps the island out."""
    pods = [*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad")]
    lease = {"bad": make_heartbeat(renewed=-20, unchanged=-20)}
    job = with_store(trained(), 2, "")
    found = ask(
        job,
        *pods,
        etcd_pod("bad"),
        nodes=SILENT_NODES,
        heartbeats=lease,
        settings=Settings(),
        rendezvous=make_view(Connectivity.UNREACHABLE),
    )
    assert [action.name for action in made(found, DeletePod)] == ["digits-etcd-0"]


def test_the_plan_is_made_again_when_a_node_becomes_lost() -> None:
    nodes = {"good": make_node("good"), "bad": make_node("bad", NodeHealth.SILENT, since=-1)}
    found = ask(
        trained(replicas=2),
        make_pod(0, node="good"),
        make_pod(1, node="bad"),
        nodes=nodes,
        rendezvous=make_view(plan=make_plan()),
    )
    assert found.requeue_at == at(4)


def leftover(name: str, component: str, owner: str, *, terminating: bool = True) -> Pod:
    """A pod of a deleted job that had the same name, on a lost node."""
    pod = make_pod(0, node="bad", deletion_timestamp=-60 if terminating else None)
    return dataclasses.replace(pod, name=name, uid=name, job_uid=owner, component=component)


def test_what_a_deleted_job_left_on_a_lost_node_is_deleted_by_force() -> None:
    """Its etcd's pod has the name that the new job's needs. Pods that no one owns may be someone's."""
    left = (
        leftover("digits-worker-0-gwtch", "worker", "deleted"),
        leftover("digits-etcd-0", "etcd", "deleted"),
        leftover("digits-worker-1-gwtch", "worker", ""),
        leftover("digits-worker-2-gwtch", "worker", "deleted", terminating=False),
    )
    found = ask(make_job(), nodes=SILENT_NODES, heartbeats=OLD_LEASE, leftovers=left, admission=ADMITTED)
    deletes = made(found, DeletePod)
    assert [(delete.name, delete.force) for delete in deletes] == [
        ("digits-worker-0-gwtch", True),
        ("digits-etcd-0", True),
    ]
    assert len(names(found, CreatePod)) == 4, "the new job starts at once"


@pytest.mark.parametrize("heartbeats", [{}, OLD_LEASE])
def test_deleting_a_job_in_the_foreground_does_not_wait_for_a_lost_node(heartbeats: dict[str, Any]) -> None:
    job = trained()
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"deletion_timestamp": NOW})})
    pods = [make_pod(0, node="good", deletion_timestamp=30), make_pod(1, node="bad", deletion_timestamp=30)]
    found = ask(job, *pods, etcd_pod("bad"), nodes=SILENT_NODES, heartbeats=heartbeats, rendezvous=make_view())
    assert names(found, DeletePod) == (["digits-worker-1", "digits-etcd-0"] if heartbeats else [])
    assert [action.node for action in made(found, ReadHeartbeat)] == ([] if heartbeats else ["bad"])
    assert not names(found, CreatePod)
    assert found.target is not None, "its keys are deleted in the end"
