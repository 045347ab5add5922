"""What a whole plan says: actions, conditions, when to look again. One case for each moment of a job's life."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from elasticjob_operator.api import ConditionStatus, ConditionType, ElasticJob, Reason, RendezvousStatus, Status
from elasticjob_operator.planning import (
    Action,
    ClearRun,
    CreateObject,
    CreatePod,
    DeleteJob,
    DeleteObject,
    DeletePod,
    DryRunCreate,
    EvictMember,
    PatchObject,
    Plan,
    PublishSpec,
    ReadHeartbeat,
    plan,
)
from elasticjob_operator.policies.rendezvous import wanted_spec
from elasticjob_operator.resources.pods import template_hash
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import (
    Admission,
    Blocked,
    Connectivity,
    JobState,
    Kind,
    NodeHealth,
    OwnedObject,
    Pod,
    PodPhase,
    Rejection,
    RendezvousView,
)
from elasticjob_runtime.contract import ProgressValue, SpecValue

from tests.unit.operator.builders import (
    NOW,
    UID,
    at,
    failed_pod,
    make_failure,
    make_heartbeat,
    make_job,
    make_node,
    make_outcome,
    make_plan,
    make_pod,
    make_status,
    make_view,
)

SETTINGS = Settings(endpoint="etcd:2379")
ADMITTED = Admission(template_hash=make_pod().template_hash, at=NOW)


def ask(job: ElasticJob, *pods: Pod, seconds: float = 0, settings: Settings = SETTINGS, **world: Any) -> Plan:
    return plan(job, JobState(pods=tuple(pods), **{"nodes": {}, **world}), settings, at(seconds))


def kinds(found: Plan) -> list[str]:
    return [type(action).__name__ for action in found.actions]


def names(found: Plan, kind: type[Action]) -> list[str]:
    """Of the objects that actions of that kind are about."""
    return [_name(each) for each in found.actions if isinstance(each, kind)]


def _name(action: Any) -> str:
    for attribute in ("name", "member"):
        if hasattr(action, attribute):
            return str(getattr(action, attribute))
    return str(action.body["metadata"]["name"])


def condition(found: Plan, type_: ConditionType) -> tuple[str, str]:
    known = found.status.condition(type_)
    return (known.status.value, known.reason) if known else ("", "")


def owned(found: Plan) -> dict[tuple[Kind, str], OwnedObject]:
    """The objects of a plan, as if they had been created."""
    objects = [(each.kind, each.body) for each in found.actions if isinstance(each, CreateObject)]
    return {
        (kind, body["metadata"]["name"]): OwnedObject(
            kind=kind, name=body["metadata"]["name"], uid="o", owner_uid=UID, terminating=False, json=orjson.dumps(body)
        )
        for kind, body in objects
    }


def follow(job: ElasticJob, found: Plan) -> ElasticJob:
    return job.model_copy(update={"status": found.status})


def published(job: ElasticJob, *members: int, draining: tuple[str, ...] = ()) -> SpecValue:
    return wanted_spec(job, members=members, draining=draining, max_restarts=job.spec.restart_policy.max_restarts)


def trained(replicas: int = 4, **job: Any) -> ElasticJob:
    status = job.pop("status", None) or make_status(
        ConditionType.ACCEPTED, ConditionType.RUNNING, round=1, world_size=4
    )
    return make_job(replicas=replicas, status=status, **job)


def test_new_job_is_asked_about_first_and_nothing_else_happens() -> None:
    found = ask(make_job())
    assert kinds(found) == ["DryRunCreate"]
    assert found.requeue_at == NOW
    assert found.status == Status()


def test_pods_services_and_etcd_are_created_together_without_waiting_for_etcd() -> None:
    found = ask(make_job(replicas=3), admission=ADMITTED, settings=Settings())
    assert names(found, CreatePod) == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    assert sorted(names(found, CreateObject)) == ["digits", "digits-etcd", "digits-etcd"]
    assert condition(found, ConditionType.ACCEPTED) == ("True", "Accepted")
    assert condition(found, ConditionType.RUNNING) == ("False", "WaitingForWorkers")
    assert found.status.rendezvous == RendezvousStatus(
        id=f"{UID}-1", backend="etcd-v3", endpoint="digits-etcd.ml.svc:2379"
    )
    assert found.target is not None
    assert found.target.endpoint == "digits-etcd.ml.svc:2379"


def test_no_etcd_is_made_when_one_is_given() -> None:
    assert names(ask(make_job(), admission=ADMITTED), CreateObject) == ["digits"]


def test_pod_template_that_the_server_refuses_creates_nothing() -> None:
    refused = dataclasses.replace(ADMITTED, rejection="spec.containers[0].image: Required value", invalid=True)
    found = ask(make_job(), admission=refused)
    assert kinds(found) == []
    assert condition(found, ConditionType.ACCEPTED) == ("False", "InvalidPodTemplate")
    assert found.requeue_at == at(30)
    assert [story.warning for story in found.events] == [True]


def test_template_without_the_named_container() -> None:
    found = ask(make_job(workers={"container": "nobody"}))
    assert kinds(found) == []
    assert condition(found, ConditionType.ACCEPTED) == ("False", "InvalidPodTemplate")


def test_steady_state_does_nothing() -> None:
    job = trained()
    pods = [make_pod(index) for index in range(4)]
    first = ask(job, *pods, rendezvous=make_view(plan=make_plan(), spec=published(job, 0, 1, 2, 3)))
    again = ask(
        follow(job, first),
        *pods,
        seconds=100,
        objects=owned(first),
        rendezvous=make_view(plan=make_plan(), spec=published(job, 0, 1, 2, 3)),
    )
    assert again.actions == ()
    assert again.events == ()
    assert again.status == first.status
    assert again.requeue_at is None


def test_running_has_world_size_and_round_of_the_plan() -> None:
    found = ask(trained(), *[make_pod(index) for index in range(4)], rendezvous=make_view(plan=make_plan(3)))
    assert condition(found, ConditionType.RUNNING) == ("True", "Training")
    assert (found.status.world_size, found.status.round, found.status.workers) == (4, 3, "4/4")
    assert (found.status.replicas, found.status.ready_replicas) == (4, 4)


def test_spec_is_written_again_when_etcd_came_back_empty() -> None:
    job = trained()
    found = ask(job, *[make_pod(index) for index in range(4)], rendezvous=make_view())
    (action,) = [each for each in found.actions if isinstance(each, PublishSpec)]
    assert action.spec == published(job, 0, 1, 2, 3)


def test_round_and_restarts_never_shrink_when_etcd_came_back_empty() -> None:
    job = trained(status=make_status(ConditionType.ACCEPTED, restarts=2, round=7))
    found = ask(job, *[make_pod(index) for index in range(4)], rendezvous=make_view())
    assert (found.status.round, found.status.restarts.total) == (7, 2)


def test_deleted_pod_comes_back_with_its_index() -> None:
    found = ask(trained(), make_pod(0), make_pod(1), make_pod(3), rendezvous=make_view(plan=make_plan()))
    assert names(found, CreatePod) == ["digits-worker-2"]


class TestShrink:
    """Draining is published first, so that nobody waits for a pod that is about to go."""

    job = trained(replicas=2)
    pods = tuple(make_pod(index) for index in range(4))
    draining = ("digits-worker-2", "digits-worker-3")

    def shrink(self, view: RendezvousView) -> Plan:
        return ask(self.job, *self.pods, rendezvous=view)

    def test_first_tells(self) -> None:
        found = self.shrink(make_view(plan=make_plan(), spec=published(self.job, 0, 1, 2, 3)))
        assert names(found, DeletePod) == []
        (action,) = [each for each in found.actions if isinstance(each, PublishSpec)]
        assert (action.spec.members, tuple(action.spec.draining)) == (
            ["digits-worker-0", "digits-worker-1"],
            self.draining,
        )

    def test_then_deletes_the_highest(self) -> None:
        found = self.shrink(make_view(plan=make_plan(), spec=published(self.job, 0, 1, draining=self.draining)))
        assert names(found, DeletePod) == ["digits-worker-3", "digits-worker-2"]
        assert not any(each.force for each in found.actions if isinstance(each, DeletePod))

    def test_waits_for_the_first_contact_after_a_restart(self) -> None:
        assert names(self.shrink(make_view(Connectivity.CONNECTING)), DeletePod) == []

    def test_does_not_wait_for_an_etcd_that_is_away(self) -> None:
        assert names(self.shrink(make_view(Connectivity.UNREACHABLE)), DeletePod) == [
            "digits-worker-3",
            "digits-worker-2",
        ]


class TestFailedPod:
    job = trained()
    pods = (make_pod(0), make_pod(1), make_pod(2), failed_pod(3))
    view = make_view(plan=make_plan())

    def test_is_counted_before_it_is_deleted(self) -> None:
        first = ask(self.job, *self.pods, rendezvous=self.view)
        assert names(first, DeletePod) == []
        assert first.status.restarts.total == 1
        assert first.requeue_at == NOW
        second = ask(follow(self.job, first), *self.pods, rendezvous=self.view)
        assert names(second, DeletePod) == ["digits-worker-3"]
        assert names(second, EvictMember) == ["digits-worker-3"]
        assert second.status.restarts.total == 1

    def test_that_lost_its_membership_is_free_and_replaced_at_once(self) -> None:
        found = ask(self.job, *self.pods[:3], failed_pod(3, code=75), rendezvous=self.view)
        assert names(found, DeletePod) == ["digits-worker-3"]
        assert found.status.restarts.total == 0

    def test_budget_spent_fails_the_job_with_the_failure(self) -> None:
        job = trained(max_restarts=0)
        found = ask(job, *self.pods, rendezvous=self.view)
        assert condition(found, ConditionType.FAILED) == ("True", "MaxRestartsExceeded")
        assert condition(found, ConditionType.RUNNING) == ("False", "Finished")
        assert found.status.last_failure is not None
        assert found.status.last_failure.worker == "digits-worker-3"
        assert found.status.completion_time == NOW


SILENT_NODES = {"good": make_node("good"), "bad": make_node("bad", NodeHealth.SILENT, since=-5)}
OLD_LEASE = {"bad": make_heartbeat()}


def test_node_lost_pod_is_forced_out_and_its_member_evicted() -> None:
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad"))
    found = ask(trained(), *pods, nodes=SILENT_NODES, heartbeats=OLD_LEASE, rendezvous=make_view(plan=make_plan()))
    (delete,) = [each for each in found.actions if isinstance(each, DeletePod)]
    assert (delete.name, delete.force) == ("digits-worker-3", True)
    assert names(found, EvictMember) == ["digits-worker-3"]
    assert found.status.restarts.total == 0, "node loss is free"


def test_kubelet_is_asked_before_its_pods_are_forced_out() -> None:
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad"))
    found = ask(trained(), *pods, nodes=SILENT_NODES, rendezvous=make_view(plan=make_plan()))
    assert [each.node for each in found.actions if isinstance(each, ReadHeartbeat)] == ["bad"]
    assert not [each for each in found.actions if isinstance(each, DeletePod | EvictMember)]
    assert found.requeue_at == NOW


def test_pod_of_a_node_that_says_it_is_not_ready_has_its_grace_time() -> None:
    nodes = {"good": make_node("good"), "bad": make_node("bad", NodeHealth.NOT_READY, since=-60)}
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad"))
    found = ask(trained(), *pods, nodes=nodes, rendezvous=make_view(plan=make_plan()))
    (delete,) = [each for each in found.actions if isinstance(each, DeletePod)]
    assert (delete.name, delete.force) == ("digits-worker-3", False)
    assert not names(found, EvictMember)


def test_successor_of_a_pod_that_nobody_can_end_takes_another_name() -> None:
    nodes = {"good": make_node("good"), "bad": make_node("bad", NodeHealth.NOT_READY, since=-60)}
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node="bad", deletion_timestamp=-6))
    found = ask(trained(), *pods, nodes=nodes, rendezvous=make_view(plan=make_plan()))
    assert names(found, CreatePod) == ["digits-worker-4"]
    assert not [each for each in found.actions if isinstance(each, DeletePod)]
    (published,) = [each for each in found.actions if isinstance(each, PublishSpec)]
    assert published.spec.members == [f"digits-worker-{index}" for index in (0, 1, 2, 4)]


@pytest.mark.parametrize("node", ["bad", "good"])
def test_consistent_job_keeps_what_is_on_a_silent_node_and_says_so(node: str) -> None:
    job = trained(spec={"rendezvous": {"onPartition": "Consistent"}})
    pods = (*(make_pod(index, node="good") for index in range(3)), make_pod(3, node=node, ready=node == "good"))
    found = ask(job, *pods, nodes=SILENT_NODES, heartbeats=OLD_LEASE, rendezvous=make_view(plan=make_plan(size=3)))
    assert not [each for each in found.actions if isinstance(each, DeletePod | EvictMember | ReadHeartbeat)]
    (published,) = [each for each in found.actions if isinstance(each, PublishSpec)]
    assert published.spec.on_partition == "Consistent"
    if node == "bad":
        assert condition(found, ConditionType.DEGRADED) == ("True", "NodeSilent")
        (story,) = [each for each in found.events if each.reason is Reason.NODE_SILENT]
        assert story.warning
        assert "out-of-service" in story.message


def etcd_pod(node: str, uid: str = "e") -> Pod:
    return dataclasses.replace(make_pod(0, node=node), name="digits-etcd-0", uid=uid, component="etcd", index=-1)


def with_store(job: ElasticJob, generation: int | None, pod: str) -> ElasticJob:
    rendezvous = RendezvousStatus(
        id=f"{UID}-1", backend="etcd-v3", endpoint="digits-etcd.ml.svc:2379", store_generation=generation, store_pod=pod
    )
    return job.model_copy(update={"status": job.status.model_copy(update={"rendezvous": rendezvous})})


def test_etcd_that_died_with_its_node_loses_its_number_first_and_is_then_forced_out() -> None:
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
    assert first.status.rendezvous is not None
    assert (first.status.rendezvous.store_generation, first.status.rendezvous.store_pod) == (2, "")
    assert not [each for each in first.actions if isinstance(each, DeletePod)]
    assert first.requeue_at == NOW
    written = job.model_copy(update={"status": first.status})
    second = ask(written, *pods, etcd_pod("bad"), **world)
    (delete,) = [each for each in second.actions if isinstance(each, DeletePod)]
    assert (delete.name, delete.force) == ("digits-etcd-0", True)
    assert second.status.rendezvous == first.status.rendezvous, "counted once"
    third = ask(written, *pods, etcd_pod("good", uid="e2"), **{**world, "rendezvous": make_view()})
    (published,) = [each for each in third.actions if isinstance(each, PublishSpec)]
    assert published.spec.store_generation == 2
    assert third.status.rendezvous is not None
    assert (third.status.rendezvous.store_generation, third.status.rendezvous.store_pod) == (2, "e2")


def test_etcd_on_a_silent_node_is_replaced_before_the_workers_there_have_surely_stopped() -> None:
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
    assert [each.name for each in found.actions if isinstance(each, DeletePod)] == ["digits-etcd-0"]


def test_timer_for_a_node_that_is_about_to_be_lost() -> None:
    nodes = {"good": make_node("good"), "bad": make_node("bad", NodeHealth.SILENT, since=-1)}
    found = ask(
        trained(replicas=2),
        make_pod(0, node="good"),
        make_pod(1, node="bad"),
        nodes=nodes,
        rendezvous=make_view(plan=make_plan()),
    )
    assert found.requeue_at == at(4)


def test_quota_refusal_is_waited_for_and_shown() -> None:
    rejection = Rejection(kinds=frozenset({"Pod"}), message="exceeded quota", retry_at=at(8))
    found = ask(trained(), make_pod(0), make_pod(1), rendezvous=make_view(plan=make_plan()), rejection=rejection)
    assert names(found, CreatePod) == []
    assert found.requeue_at == at(8)
    running = found.status.condition(ConditionType.RUNNING)
    assert running is not None
    assert "exceeded quota" in running.message
    assert names(ask(trained(), make_pod(0), seconds=8, rejection=rejection), CreatePod) == [
        "digits-worker-1",
        "digits-worker-2",
        "digits-worker-3",
    ]


def test_refusal_of_what_is_not_wanted_any_more_is_not_shown() -> None:
    """The quota refused two more, and the job was scaled down again: nothing is created that would show that it may
    be."""
    rejection = Rejection(kinds=frozenset({"Pod"}), message="exceeded quota", retry_at=at(8))
    objects = owned(ask(make_job(), admission=ADMITTED))
    pods, view = [make_pod(0), make_pod(1)], make_view(plan=make_plan(size=2))
    found = ask(trained(replicas=2), *pods, rendezvous=view, rejection=rejection, objects=objects)
    running = found.status.condition(ConditionType.RUNNING)
    assert running is not None
    assert "quota" not in running.message
    assert found.requeue_at is None


def test_refused_autoscaler_holds_no_worker_back() -> None:
    rejection = Rejection(
        kinds=frozenset({"HorizontalPodAutoscaler"}), message="spec.metrics[0].type: Invalid value", retry_at=at(8)
    )
    job = trained(replicas=2, spec={"scaling": {"metrics": METRICS}})
    found = ask(job, make_pod(0), rendezvous=make_view(plan=make_plan(size=2)), rejection=rejection)
    assert names(found, CreatePod) == ["digits-worker-1"]
    assert [each.kind for each in found.actions if isinstance(each, CreateObject)] == [Kind.SERVICE]
    assert found.requeue_at == at(8)


def test_pods_of_an_earlier_job_of_the_name_are_waited_for() -> None:
    found = ask(
        make_job(replicas=2),
        admission=ADMITTED,
        names_in_use=frozenset({("Pod", "digits-worker-0"), ("Service", "digits")}),
    )
    assert names(found, CreatePod) == ["digits-worker-1"]
    assert names(found, CreateObject) == []


def test_somebody_elses_pod_with_copied_labels_is_left_alone() -> None:
    stranger = dataclasses.replace(make_pod(0), name="copy-of-worker")
    found = ask(trained(replicas=1, min=1), stranger, rendezvous=make_view(plan=make_plan()))
    assert names(found, DeletePod) == []
    assert names(found, CreatePod) == ["digits-worker-0"]


def test_pods_of_an_earlier_run_are_garbage() -> None:
    status = make_status(ConditionType.ACCEPTED, rendezvous=RendezvousStatus(id=f"{UID}-2", endpoint="etcd:2379"))
    found = ask(trained(replicas=2, status=status), make_pod(0, run=1), make_pod(1, run=2), rendezvous=make_view())
    assert names(found, DeletePod) == ["digits-worker-0"]
    assert names(found, CreatePod) == [], "its name is still held"


def test_object_edited_by_hand_is_put_right() -> None:
    job = trained()
    first = ask(make_job(), admission=ADMITTED)
    objects = owned(first)
    (key,) = objects
    edited = {**objects[key].body, "spec": {**objects[key].body["spec"], "selector": {"wrong": "pods"}}}
    pods = [make_pod(index) for index in range(4)]
    found = ask(job, *pods, objects={key: dataclasses.replace(objects[key], json=orjson.dumps(edited))})
    assert names(found, PatchObject) == ["digits"]


def test_new_default_image_restarts_nobodys_etcd() -> None:
    first = ask(make_job(), admission=ADMITTED, settings=Settings(etcd_image="etcd:1"))
    found = ask(
        trained(),
        *[make_pod(index) for index in range(4)],
        objects=owned(first),
        settings=Settings(etcd_image="etcd:2"),
    )
    assert names(found, PatchObject) == []


class TestEnd:
    pods = tuple(make_pod(index) for index in range(4))

    def test_success_is_said_first_and_cleaned_up_later(self) -> None:
        progress = ProgressValue(step=100, round=1, updated_at=NOW.timestamp(), metrics={"loss": float("nan")})
        found = ask(
            trained(), *self.pods, rendezvous=make_view(outcome=make_outcome(), plan=make_plan(), progress=progress)
        )
        assert found.actions == ()
        assert condition(found, ConditionType.SUCCEEDED) == ("True", "WorkersSucceeded")
        assert condition(found, ConditionType.FAILED) == ("False", "WorkersSucceeded")
        assert found.status.summary == "Succeeded"
        assert (found.status.world_size, found.status.progress and found.status.progress.step) == (0, 100)
        assert [story.reason for story in found.events] == [Reason.WORKERS_SUCCEEDED]

    def test_failed_outcome_is_told_with_the_first_failing_rank(self) -> None:
        failure = dataclasses.asdict(make_failure(2, message="ValueError: no", traceback="Traceback\nValueError: no"))
        outcome = make_outcome(
            "failed", "MaxRestartsExceeded", message="rank 2: ValueError: no; 3 of 3 restarts used", failure=failure
        )
        found = ask(trained(), *self.pods, rendezvous=make_view(outcome=outcome, plan=make_plan(restart_count=3)))
        assert condition(found, ConditionType.FAILED) == ("True", "MaxRestartsExceeded")
        last = found.status.last_failure
        assert last is not None
        assert (last.worker, last.rank, last.exit_code) == ("digits-worker-2", 2, 1)
        assert "Traceback" in last.message
        assert [(story.warning, "rank 2: ValueError: no" in story.message) for story in found.events] == [(True, True)]

    def finished(self, **fields: Any) -> ElasticJob:
        return make_job(status=make_status(ConditionType.SUCCEEDED, completion_time=NOW, round=1, **fields))

    def test_terminal_is_terminal(self) -> None:
        found = ask(
            self.finished(),
            *[failed_pod(index) for index in range(4)],
            rendezvous=make_view(outcome=make_outcome("failed", "X")),
        )
        assert condition(found, ConditionType.SUCCEEDED)[0] == ConditionStatus.TRUE
        assert condition(found, ConditionType.FAILED) == ("", "")
        assert names(found, CreatePod) == []

    def test_running_pods_go_after_a_grace(self) -> None:
        assert ask(self.finished(), *self.pods).requeue_at == at(10)
        assert len(names(ask(self.finished(), *self.pods, seconds=10), DeletePod)) == 4

    def test_etcd_and_services_go_when_nothing_runs(self) -> None:
        objects = owned(ask(make_job(), admission=ADMITTED, settings=Settings()))
        running = ask(self.finished(), *self.pods, objects=objects, settings=Settings())
        assert names(running, DeleteObject) == []
        done = [make_pod(index, PodPhase.SUCCEEDED) for index in range(4)]
        ended = ask(self.finished(), *done, objects=objects, settings=Settings())
        assert sorted(names(ended, DeleteObject)) == ["digits", "digits-etcd", "digits-etcd"]
        assert ended.target is None

    def test_keys_in_the_users_own_etcd_are_removed(self) -> None:
        found = ask(self.finished(), make_pod(0, PodPhase.SUCCEEDED), rendezvous=make_view(outcome=make_outcome()))
        assert [type(each) for each in found.actions] == [ClearRun]
        assert found.target is not None
        after = ask(self.finished(), make_pod(0, PodPhase.SUCCEEDED), rendezvous=make_view())
        assert (after.actions, after.target) == ((), None)


def test_job_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    job = make_job()
    deleting = job.model_copy(update={"metadata": job.metadata.model_copy(update={"deletion_timestamp": NOW})})
    assert ask(deleting, make_pod(0)) == Plan(status=deleting.status)


def test_every_action_says_why() -> None:
    found = ask(make_job(), admission=ADMITTED, settings=Settings())
    assert all(action.reason for action in (*found.actions, *ask(make_job()).actions))
    assert any(isinstance(action, DryRunCreate) for action in ask(make_job()).actions)


def test_job_whose_namespace_terminating_is_left_alone() -> None:
    found = ask(trained(), make_pod(0), namespace_terminating=True)
    assert (found.actions, found.events, found.status, found.requeue_at) == ((), (), trained().status, None)
    assert found.target is not None, "its keys in a user's etcd are still to be cleared"


class TestSuspension:
    """Everything goes, the status stays; a resumed job is a new run."""

    def job(self, suspend: bool = True, *true: ConditionType, **status: Any) -> ElasticJob:
        rendezvous = RendezvousStatus(id=f"{UID}-1", backend="etcd-v3", endpoint="etcd:2379")
        known = {"round": 5, "restarts": 2, "start_time": at(-600), "rendezvous": rendezvous, **status}
        conditions = true or (ConditionType.ACCEPTED, ConditionType.RUNNING)
        return make_job(spec={"lifecycle": {"suspend": suspend}}, status=make_status(*conditions, **known))

    at_rest = (ConditionType.ACCEPTED, ConditionType.SUSPENDED)
    old = make_view(plan=make_plan(5, restart_count=2), spec=published(make_job(), 0, 1, 2, 3), run_id=f"{UID}-1")

    def test_pods_go_first(self) -> None:
        found = ask(self.job(), *[make_pod(index) for index in range(4)], rendezvous=self.old)
        assert len(names(found, DeletePod)) == 4
        assert names(found, DeleteObject) == []
        assert condition(found, ConditionType.SUSPENDED) == ("False", "Suspending")
        assert condition(found, ConditionType.RUNNING) == ("False", "Suspending")
        assert found.target is not None

    def test_then_the_rest_and_it_is_suspended_with_its_status_kept(self) -> None:
        objects = owned(ask(make_job(), admission=ADMITTED))
        found = ask(self.job(), objects=objects, rendezvous=self.old)
        assert kinds(found) == ["DeleteObject", "ClearRun"]
        assert condition(found, ConditionType.SUSPENDED) == ("True", "Suspended")
        assert found.status.summary == "Suspended"
        assert (found.status.round, found.status.restarts.total, found.status.workers) == (5, 2, "0/4")
        assert [story.reason for story in found.events] == [Reason.SUSPENDED]

    def test_at_rest_nothing_is_done_and_followed(self) -> None:
        job = self.job(True, *self.at_rest)
        job = follow(job, ask(job))
        found = ask(job, seconds=9999)
        assert (found.actions, found.status, found.target, found.requeue_at) == ((), job.status, None, None)

    def test_failed_pod_is_counted_before_it_goes(self) -> None:
        first = ask(self.job(), failed_pod(0), rendezvous=make_view())
        assert (names(first, DeletePod), first.status.restarts.total, first.requeue_at) == ([], 3, NOW)
        assert names(ask(follow(self.job(), first), failed_pod(0)), DeletePod) == ["digits-worker-0"]

    def test_resumed_it_is_another_run_and_knows_nothing_of_the_last_ones_keys(self) -> None:
        found = ask(self.job(False, *self.at_rest), rendezvous=self.old)
        assert found.target is not None
        assert found.target.run_id == f"{UID}-2"
        pods = [each.body for each in found.actions if isinstance(each, CreatePod)]
        assert len(pods) == 4
        environment = {each["name"]: each.get("value") for each in pods[0]["spec"]["containers"][0]["env"]}
        assert (environment["PET_RDZV_ID"], environment["ELASTICJOB_UID"]) == (f"{UID}-2", UID)
        assert (found.status.round, found.status.start_time, found.status.restarts.total) == (0, NOW, 2)
        assert condition(found, ConditionType.SUSPENDED) == ("False", "JobResumed")
        assert found.status.rendezvous is not None
        assert found.status.rendezvous.id == f"{UID}-2"

    def test_resumed_and_written_it_stays_that_run(self) -> None:
        job = self.job(False, *self.at_rest)
        job = follow(job, ask(job))
        found = ask(
            job,
            *[make_pod(index, run=2) for index in range(4)],
            rendezvous=make_view(plan=make_plan(1), run_id=f"{UID}-2"),
        )
        assert names(found, CreatePod) == names(found, DeletePod) == []
        assert condition(found, ConditionType.RUNNING) == ("True", "Training")
        assert found.status.round == 1

    def test_resumed_with_another_template_the_server_is_asked_first(self) -> None:
        job = self.job(False, *self.at_rest)
        job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 2})})
        first = ask(job)
        assert (kinds(first), first.status) == (["DryRunCreate"], job.status)
        assert len(names(ask(job, admission=ADMITTED), CreatePod)) == 4

    def test_resumed_with_another_template_before_its_pods_were_gone_it_is_another_run(self) -> None:
        """Half of the workers with one image and half with another is no state that anybody wants."""
        other = {"spec": {"containers": [{"name": "trainer", "image": "trainer:2"}]}}
        before = self.job(False)
        metadata = before.metadata.model_copy(update={"generation": 3})
        job = make_job(template=other, status=before.status).model_copy(update={"metadata": metadata})
        old = [make_pod(0), make_pod(1, deletion_timestamp=20), make_pod(2)]
        admitted = Admission(template_hash=template_hash(job), at=NOW)
        found = ask(job, *old, rendezvous=self.old, admission=admitted)
        assert names(found, DeletePod) == ["digits-worker-0", "digits-worker-2"]
        assert names(found, CreatePod) == [], (
            "not before the last of the old ones is gone: there would be more than wanted"
        )
        assert found.target is not None
        assert found.target.run_id == f"{UID}-2"
        assert (found.status.round, found.status.restarts.total, found.status.replicas) == (0, 2, 3)
        again = ask(follow(job, found), make_pod(1, deletion_timestamp=20), rendezvous=make_view(run_id=f"{UID}-2"))
        assert again.target is not None
        assert again.target.run_id == f"{UID}-2", "once"
        assert names(again, CreatePod) == []
        assert len(names(ask(follow(job, again), rendezvous=make_view(run_id=f"{UID}-2")), CreatePod)) == 4

    def test_template_that_is_restored_with_the_suspension_touches_nothing_else(self) -> None:
        other = {"spec": {"containers": [{"name": "trainer", "image": "trainer:2"}]}}
        job = make_job(template=other, spec={"lifecycle": {"suspend": True}}, status=self.job().status)
        found = ask(job, make_pod(0), make_pod(1, deletion_timestamp=20), rendezvous=self.old)
        assert names(found, DeletePod) == ["digits-worker-0"]
        assert condition(found, ConditionType.SUSPENDED) == ("False", "Suspending")
        assert condition(found, ConditionType.ACCEPTED) == ("True", "Accepted"), "not asked yet, and no event"
        assert found.target is not None
        assert found.target.run_id == f"{UID}-1"

    def test_resumed_with_a_template_that_is_refused_it_says_so_everywhere(self) -> None:
        job = self.job(False, ConditionType.ACCEPTED, ConditionType.SUSPENDED)
        rests = follow(job, ask(self.job(True, ConditionType.ACCEPTED, ConditionType.RUNNING)))
        job = rests.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 2}), "spec": job.spec})
        refused = Admission(
            template_hash=template_hash(job), rejection="spec.containers[0].image: Required value", invalid=True, at=NOW
        )
        found = ask(job, admission=refused)
        assert condition(found, ConditionType.RUNNING) == ("False", "InvalidPodTemplate")
        assert condition(found, ConditionType.SUSPENDED) == ("False", "JobResumed")

    def test_run_that_an_operator_began_and_did_not_tell_of_is_never_begun_again(self) -> None:
        """It died after it had created pods of run 2, and the job was suspended again."""
        pods = [make_pod(0, run=2), failed_pod(1, run=2)]
        first = ask(self.job(True, *self.at_rest), *pods)
        assert first.status.rendezvous is not None
        assert first.status.rendezvous.id == f"{UID}-2"
        assert names(first, DeletePod) == ["digits-worker-0"]
        assert names(ask(follow(self.job(), first), *pods), DeletePod) == ["digits-worker-0", "digits-worker-1"]
        resumed = follow(self.job(False), ask(follow(self.job(), first)))
        assert [each.target and each.target.run_id for each in [ask(resumed)]] == [f"{UID}-3"]

    def test_succeeded_in_the_last_moment_it_has_succeeded(self) -> None:
        found = ask(self.job(), make_pod(0), rendezvous=make_view(outcome=make_outcome()))
        assert condition(found, ConditionType.SUCCEEDED) == ("True", "WorkersSucceeded")

    def test_that_its_workers_fail_of_the_suspension_is_no_failure_of_the_job(self) -> None:
        found = ask(
            self.job(), make_pod(0, deletion_timestamp=9), rendezvous=make_view(outcome=make_outcome("failed", "Other"))
        )
        assert condition(found, ConditionType.FAILED) == ("False", "NotFinished")


def test_startup_deadline_frees_the_workers_of_a_job_that_cannot_start() -> None:
    status = make_status(ConditionType.ACCEPTED, start_time=at(-60))
    job = make_job(spec={"lifecycle": {"startupDeadlineSeconds": 60, "cleanPods": "None"}}, status=status)
    blocked = Blocked(reason="Unschedulable", message="0/3 nodes are available")
    pods = [make_pod(0), make_pod(1, PodPhase.PENDING, blocked=blocked)]
    found = ask(job, *pods, rendezvous=make_view())
    assert condition(found, ConditionType.FAILED) == ("True", "StartupDeadlineExceeded")
    failed = found.status.condition(ConditionType.FAILED)
    assert failed is not None
    assert "0/3 nodes are available" in failed.message
    assert len(names(ask(follow(job, found), *pods, seconds=10), DeletePod)) == 2
    assert ask(job, *pods, seconds=-10).requeue_at == NOW


def test_ended_job_is_deleted_after_its_time() -> None:
    status = make_status(ConditionType.SUCCEEDED, completion_time=NOW)
    job = make_job(spec={"lifecycle": {"ttlSecondsAfterFinished": 60}}, status=status)
    assert ask(job, seconds=10).requeue_at == at(60)
    assert names(ask(job, seconds=60), DeleteJob) == ["digits"]


@pytest.mark.parametrize(
    ("manager", "touched"), [("", True), ("elasticjob.dev/operator", True), ("kueue.x-k8s.io/multikueue", False)]
)
@pytest.mark.parametrize(
    "where", [lambda manager: {"managedBy": manager}, lambda manager: {"lifecycle": {"managedBy": manager}}]
)
def test_job_of_another_controller_is_left_alone(where: Callable[[str], Any], manager: str, touched: bool) -> None:
    assert bool(ask(make_job(spec=where(manager))).actions) is touched


METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]


class TestScaling:
    def test_metrics_get_an_autoscaler_within_the_bounds(self) -> None:
        found = ask(make_job(spec={"scaling": {"metrics": METRICS}}), admission=ADMITTED)
        (scaler,) = [
            each.body for each in found.actions if isinstance(each, CreateObject) and each.kind is Kind.AUTOSCALER
        ]
        assert scaler["spec"]["scaleTargetRef"] == {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "name": "digits",
        }
        assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"], scaler["spec"]["metrics"]) == (
            2,
            8,
            METRICS,
        )

    def test_without_metrics_it_goes(self) -> None:
        objects = owned(ask(make_job(spec={"scaling": {"metrics": METRICS}}), admission=ADMITTED))
        found = ask(trained(), *[make_pod(index) for index in range(4)], objects=objects)
        assert [(each.kind, each.name) for each in found.actions if isinstance(each, DeleteObject)] == [
            (Kind.AUTOSCALER, "digits")
        ]

    def test_size_in_between_is_rounded_down_and_told_to_the_agents(self) -> None:
        found = ask(
            make_job(replicas=7, workers={"allowedReplicas": [2, 4, 8]}), admission=ADMITTED, rendezvous=make_view()
        )
        assert len(names(found, CreatePod)) == 4
        (action,) = [each for each in found.actions if isinstance(each, PublishSpec)]
        assert (action.spec.wanted, action.spec.allowed) == (4, [2, 4, 8])
        assert (found.status.desired_replicas, found.status.workers) == (4, "0/4")

    def test_more_workers_come_after_the_delay_and_lost_ones_at_once(self) -> None:
        scaling = {"scaling": {"scaleUpDelaySeconds": 10}}
        status = make_status(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1, desired_replicas=4, start_time=NOW)
        job = trained(replicas=6, spec=scaling, status=status)
        view = make_view(plan=make_plan())
        first = ask(job, *[make_pod(index) for index in (0, 1, 3)], rendezvous=view)
        assert names(first, CreatePod) == ["digits-worker-2"], "a lost one"
        assert first.requeue_at == at(10)
        assert condition(first, ConditionType.RESIZING) == ("True", "ScaleUpDelayed")
        pods = [make_pod(index) for index in range(4)]
        assert names(ask(follow(job, first), *pods, seconds=9, rendezvous=view), CreatePod) == []
        then = ask(follow(job, first), *pods, seconds=10, rendezvous=view)
        assert names(then, CreatePod) == ["digits-worker-4", "digits-worker-5"]
        assert condition(then, ConditionType.RESIZING) == ("True", "ScalingUp")
        assert (then.status.desired_replicas, then.status.scale_up_time) == (6, None)


class TestTorchrunsOwnRendezvous:
    """Nothing is heard of the agents: pods tell."""

    def job(self, *true: ConditionType, replicas: int = 2, **status: Any) -> ElasticJob:
        known = make_status(*(true or (ConditionType.ACCEPTED,)), start_time=NOW, **status)
        return make_job(replicas=replicas, spec={"rendezvous": {"backend": "c10d"}}, status=known)

    def test_workers_meet_at_worker_0_and_no_etcd_is_made(self) -> None:
        found = ask(self.job(), settings=Settings())
        assert names(found, CreateObject) == ["digits"]
        assert found.target is None
        assert found.status.rendezvous is not None
        assert found.status.rendezvous.endpoint == "digits-worker-0.digits.ml.svc:29400"
        pods = [each.body for each in found.actions if isinstance(each, CreatePod)]
        environments = [
            {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]} for pod in pods
        ]
        assert [each["PET_RDZV_CONF"] for each in environments] == ["is_host=true", "is_host=false"]
        assert {each["PET_RDZV_ENDPOINT"] for each in environments} == {"digits-worker-0.digits.ml.svc:29400"}
        # Else torchrun restarts into the store of the round before, and hangs there after any lost pod.
        assert {each["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] for each in environments} == {"1"}
        assert condition(found, ConditionType.RENDEZVOUS_READY) == ("False", "StoreStarting")

    def test_ready_pods_train(self) -> None:
        found = ask(self.job(), make_pod(0), make_pod(1))
        assert condition(found, ConditionType.RUNNING) == ("True", "Training")
        assert condition(found, ConditionType.RENDEZVOUS_READY) == ("True", "StoreReady")
        assert found.requeue_at is None

    def test_shrinks_without_telling_anybody_and_keeps_worker_0(self) -> None:
        job = self.job(replicas=2)
        found = ask(job, make_pod(0, PodPhase.PENDING), make_pod(1), make_pod(2))
        assert names(found, DeletePod) == ["digits-worker-2"]

    def test_failed_pod_is_counted_and_training_goes_on_when_it_is_replaced(self) -> None:
        job = self.job(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1)
        first = ask(job, make_pod(0), failed_pod(1))
        assert first.status.restarts.total == 1
        assert condition(first, ConditionType.RESTARTING) == ("True", "WorkerFailed")
        again = ask(follow(job, first), make_pod(0), make_pod(1, incarnation=1, created=9), seconds=9)
        assert condition(again, ConditionType.RUNNING) == ("True", "Training")
        assert condition(again, ConditionType.RESTARTING) == ("False", "Resumed")

    def test_etcd_v2_is_the_users_own(self) -> None:
        rendezvous = {"backend": "etcd-v2", "endpoint": "old:2379"}
        found = ask(
            make_job(spec={"rendezvous": rendezvous}), admission=ADMITTED, settings=Settings(endpoint="v3:2379")
        )
        assert found.status.rendezvous == RendezvousStatus(id=f"{UID}-1", backend="etcd-v2", endpoint="old:2379")
        assert found.target is None
        assert condition(found, ConditionType.RENDEZVOUS_READY) == ("", "")
