"""Plans of a job that is suspended and resumed."""

from __future__ import annotations

import dataclasses
from typing import Any

from elasticjob_api import ConditionType, ElasticJob, Reason, RendezvousStatus
from elasticjob_operator.planning import CreatePod, DeleteObject, DeletePod
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.state import Admission, Connectivity, Rejection

from tests.unit.operator.builders import (
    NOW,
    UID,
    at,
    failed_pod,
    make_job,
    make_outcome,
    make_plan,
    make_pod,
    make_status,
    make_view,
)
from tests.unit.operator.planning.plans import (
    ADMITTED,
    ask,
    condition,
    follow,
    kinds,
    made,
    names,
    owned,
    published,
    rendezvous_in,
    target_of,
)


class TestSuspended:
    """Everything goes, the status stays; a resumed job is a new run."""

    def job(self, suspend: bool = True, *true: ConditionType, **status: Any) -> ElasticJob:
        rendezvous = RendezvousStatus(id=f"{UID}-1", backend="etcd-v3", endpoint="etcd:2379")
        known = {"round": 5, "restarts": 2, "start_time": at(-600), "rendezvous": rendezvous, **status}
        conditions = true or (ConditionType.ACCEPTED, ConditionType.RUNNING)
        return make_job(spec={"suspend": suspend}, status=make_status(*conditions, **known))

    at_rest = (ConditionType.ACCEPTED, ConditionType.SUSPENDED)
    old = make_view(plan=make_plan(5, restart_count=2), spec=published(make_job()), run_id=f"{UID}-1")

    def test_pods_are_deleted_first(self) -> None:
        found = ask(self.job(), *[make_pod(index) for index in range(4)], rendezvous=self.old)
        assert len(names(found, DeletePod)) == 4
        assert names(found, DeleteObject) == []
        assert condition(found, ConditionType.SUSPENDED) == ("False", "Suspending")
        assert condition(found, ConditionType.RUNNING) == ("False", "Suspending")
        assert found.target is not None

    def test_objects_and_keys_are_deleted_once_no_pod_is_left(self) -> None:
        objects = owned(ask(make_job(), admission=ADMITTED))
        found = ask(self.job(), objects=objects, rendezvous=self.old)
        assert kinds(found) == ["DeleteObject", "ClearRun"]
        assert condition(found, ConditionType.SUSPENDED) == ("True", "Suspended")
        assert found.status.summary == "Suspended"
        assert (found.status.round, found.status.restarts.total, found.status.workers) == (5, 2, "0/4")
        assert [event.reason for event in found.events] == [Reason.SUSPENDED]

    def test_objects_stay_until_an_operator_that_starts_anew_knows_whether_keys_are_left(self) -> None:
        objects = owned(ask(make_job(), admission=ADMITTED))
        new = dataclasses.replace(make_view(), connectivity=Connectivity.CONNECTING)
        found = ask(self.job(), objects=objects, rendezvous=new)
        assert (found.actions, condition(found, ConditionType.SUSPENDED)) == ((), ("True", "Suspended"))
        assert target_of(found).run_id == f"{UID}-1"
        for unreachable, expected in ((False, ["DeleteObject", "ClearRun"]), (True, ["DeleteObject"])):
            seen = dataclasses.replace(new, connectivity=Connectivity.UNREACHABLE) if unreachable else self.old
            assert kinds(ask(follow(self.job(), found), objects=objects, rendezvous=seen)) == expected

    def test_a_suspended_job_costs_nothing(self) -> None:
        job = self.job(True, *self.at_rest)
        job = follow(job, ask(job))
        found = ask(job, seconds=9999)
        assert (found.actions, found.status, found.target, found.requeue_at) == ((), job.status, None, None)

    def test_a_failed_pod_is_counted_before_it_is_deleted(self) -> None:
        first = ask(self.job(), failed_pod(0), rendezvous=make_view())
        assert (names(first, DeletePod), first.status.restarts.total, first.requeue_at) == ([], 3, NOW)
        assert names(ask(follow(self.job(), first), failed_pod(0)), DeletePod) == ["digits-worker-0"]

    def test_a_resumed_job_starts_a_new_run_without_the_keys_of_the_last(self) -> None:
        found = ask(self.job(False, *self.at_rest), rendezvous=self.old)
        assert target_of(found).run_id == f"{UID}-2"
        pods = [action.body for action in made(found, CreatePod)]
        assert len(pods) == 4
        environment = {variable["name"]: variable.get("value") for variable in pods[0]["spec"]["containers"][0]["env"]}
        assert (environment["PET_RDZV_ID"], environment["ELASTICJOB_UID"]) == (f"{UID}-2", UID)
        assert (found.status.round, found.status.start_time, found.status.restarts.total) == (0, NOW, 2)
        assert condition(found, ConditionType.SUSPENDED) == ("False", "JobResumed")
        assert rendezvous_in(found).id == f"{UID}-2"

    def test_a_job_resumed_while_its_pods_end_completes_the_suspension_and_starts_a_new_run(self) -> None:
        """They may be saving what the new ones continue from."""
        saving = [make_pod(index, deletion_timestamp=30) for index in range(4)]
        job = follow(self.job(), ask(self.job(), *saving, rendezvous=self.old))
        job = self.job(False).model_copy(update={"status": job.status})
        for _ in range(2):
            found = ask(job, *saving, rendezvous=self.old)
            assert names(found, CreatePod) == []
            assert target_of(found).run_id == f"{UID}-1", "they may report the end of the job"
            job = follow(job, found)
        ended = ask(job, rendezvous=self.old)
        assert condition(ended, ConditionType.SUSPENDED) == ("True", "Suspended")
        assert ended.requeue_at == NOW, "nothing else wakes the operator"
        found = ask(follow(job, ended))
        assert len(names(found, CreatePod)) == 4
        assert target_of(found).run_id == f"{UID}-2"

    def test_a_job_resumed_while_its_pods_end_has_succeeded_if_they_say_so(self) -> None:
        saving = [make_pod(index, deletion_timestamp=30) for index in range(4)]
        suspended = follow(self.job(), ask(self.job(), *saving, rendezvous=self.old))
        job = self.job(False).model_copy(update={"status": suspended.status})
        done = dataclasses.replace(self.old, outcome=make_outcome())
        found = ask(job, *saving, rendezvous=done)
        assert condition(found, ConditionType.SUCCEEDED)[0] == "True"

    def test_no_condition_of_a_resumed_job_says_that_it_is_suspended(self) -> None:
        of_running = (ConditionType.RUNNING, ConditionType.STALLED, ConditionType.RESTARTING, ConditionType.RESIZING)
        resting = follow(self.job(), ask(self.job(True, ConditionType.ACCEPTED, *of_running, ConditionType.DEGRADED)))
        assert sum(condition.reason == "Suspended" for condition in resting.status.conditions) == 6
        job = self.job(False).model_copy(update={"status": resting.status})
        rejected = Rejection(kinds=frozenset({"Service"}), message="it exists", since=NOW, retry_at=at(9))
        for found in (ask(job), ask(job, rejection=rejected)):
            assert [condition.type for condition in found.status.conditions if condition.reason == "Suspended"] == []
            assert condition(found, ConditionType.RESIZING) == ("False", "Resized")
            assert condition(found, ConditionType.RESTARTING) == ("False", "NotTraining")
            assert condition(found, ConditionType.DEGRADED) == ("False", "NotTraining")

    def test_a_resumed_job_keeps_its_new_run(self) -> None:
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

    def test_resumed_with_another_template_a_dry_run_create_comes_first(self) -> None:
        job = self.job(False, *self.at_rest)
        job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 2})})
        first = ask(job)
        assert (kinds(first), first.status) == (["DryRunCreate"], job.status)
        assert len(names(ask(job, admission=ADMITTED), CreatePod)) == 4

    def test_a_run_never_has_pods_of_two_templates(self) -> None:
        """Half of the worker pods must never run one image and half another."""
        other = {"spec": {"containers": [{"name": "trainer", "image": "trainer:2"}]}}
        before = self.job(False)
        metadata = before.metadata.model_copy(update={"generation": 3})
        job = make_job(template=other, status=before.status).model_copy(update={"metadata": metadata})
        old = [make_pod(0), make_pod(1, deletion_timestamp=20), make_pod(2)]
        admitted = Admission(template_hash=hash_of(job), at=NOW)
        found = ask(job, *old, rendezvous=self.old, admission=admitted)
        assert names(found, DeletePod) == ["digits-worker-0", "digits-worker-2"]
        assert names(found, CreatePod) == [], (
            "not before the last of the old ones is gone: there would be more than wanted"
        )
        assert target_of(found).run_id == f"{UID}-2"
        assert (found.status.round, found.status.restarts.total, found.status.replicas) == (0, 2, 3)
        again = ask(follow(job, found), make_pod(1, deletion_timestamp=20), rendezvous=make_view(run_id=f"{UID}-2"))
        assert target_of(again).run_id == f"{UID}-2", "once"
        assert names(again, CreatePod) == []
        assert len(names(ask(follow(job, again), rendezvous=make_view(run_id=f"{UID}-2")), CreatePod)) == 4

    def test_a_template_changed_with_the_suspension_starts_no_new_run(self) -> None:
        other = {"spec": {"containers": [{"name": "trainer", "image": "trainer:2"}]}}
        job = make_job(template=other, spec={"suspend": True}, status=self.job().status)
        found = ask(job, make_pod(0), make_pod(1, deletion_timestamp=20), rendezvous=self.old)
        assert names(found, DeletePod) == ["digits-worker-0"]
        assert condition(found, ConditionType.SUSPENDED) == ("False", "Suspending")
        assert condition(found, ConditionType.ACCEPTED) == ("True", "Accepted"), "not asked yet, and no event"
        assert target_of(found).run_id == f"{UID}-1"

    def test_resumed_with_an_invalid_template_every_condition_says_so(self) -> None:
        job = self.job(False, ConditionType.ACCEPTED, ConditionType.SUSPENDED)
        rests = follow(job, ask(self.job(True, ConditionType.ACCEPTED, ConditionType.RUNNING)))
        job = rests.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 2}), "spec": job.spec})
        refused = Admission(
            template_hash=hash_of(job), rejection="spec.containers[0].image: Required value", invalid=True, at=NOW
        )
        found = ask(job, admission=refused)
        assert condition(found, ConditionType.RUNNING) == ("False", "InvalidPodTemplate")
        assert condition(found, ConditionType.SUSPENDED) == ("False", "JobResumed")

    def test_a_run_that_a_killed_operator_started_is_never_started_again(self) -> None:
        """It died after it had created pods of run 2, and the job was suspended again."""
        pods = [make_pod(0, run=2), failed_pod(1, run=2)]
        first = ask(self.job(True, *self.at_rest), *pods)
        assert rendezvous_in(first).id == f"{UID}-2"
        assert names(first, DeletePod) == ["digits-worker-0"]
        assert names(ask(follow(self.job(), first), *pods), DeletePod) == ["digits-worker-0", "digits-worker-1"]
        resumed = follow(self.job(False), ask(follow(self.job(), first)))
        assert [item.target and item.target.run_id for item in [ask(resumed)]] == [f"{UID}-3"]

    def test_a_job_that_succeeds_while_it_is_suspended_has_succeeded(self) -> None:
        found = ask(self.job(), make_pod(0), rendezvous=make_view(outcome=make_outcome()))
        assert condition(found, ConditionType.SUCCEEDED) == ("True", "WorkersSucceeded")

    def test_workers_that_fail_because_of_the_suspension_do_not_fail_the_job(self) -> None:
        found = ask(
            self.job(), make_pod(0, deletion_timestamp=9), rendezvous=make_view(outcome=make_outcome("failed", "Other"))
        )
        assert condition(found, ConditionType.FAILED) == ("False", "NotFinished")
