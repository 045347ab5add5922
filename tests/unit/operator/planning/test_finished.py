"""Plans at the end of a job and after it."""

from __future__ import annotations

import dataclasses
from typing import Any

from elasticjob_api import ConditionStatus, ConditionType, ElasticJob, Reason
from elasticjob_operator.planning import ClearRun, CreatePod, DeleteJob, DeleteObject, DeletePod
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Blocked, Connectivity, PodPhase
from elasticjob_runtime.contract import ProgressValue

from tests.unit.operator.builders import (
    NOW,
    at,
    failed_pod,
    make_failure,
    make_job,
    make_outcome,
    make_plan,
    make_pod,
    make_status,
    make_view,
)
from tests.unit.operator.planning.plans import ADMITTED, ask, condition, follow, names, owned, said, trained


class TestFinished:
    pods = tuple(make_pod(index) for index in range(4))

    def test_success_is_in_status_before_anything_is_deleted(self) -> None:
        progress = ProgressValue(step=100, round=1, updated_at=NOW.timestamp(), metrics={"loss": float("nan")})
        found = ask(
            trained(), *self.pods, rendezvous=make_view(outcome=make_outcome(), plan=make_plan(), progress=progress)
        )
        assert found.actions == ()
        assert condition(found, ConditionType.SUCCEEDED) == ("True", "WorkersSucceeded")
        assert condition(found, ConditionType.FAILED) == ("False", "WorkersSucceeded")
        assert found.status.summary == "Succeeded"
        assert (found.status.world_size, found.status.progress and found.status.progress.step) == (0, 100)
        assert [event.reason for event in found.events] == [Reason.WORKERS_SUCCEEDED]

    def test_the_event_of_a_failed_job_names_the_first_failing_rank(self) -> None:
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
        assert [(event.warning, "rank 2: ValueError: no" in event.message) for event in found.events] == [(True, True)]

    def finished(self, **fields: Any) -> ElasticJob:
        return make_job(status=make_status(ConditionType.SUCCEEDED, completion_time=NOW, round=1, **fields))

    def test_a_finished_job_never_changes_its_outcome(self) -> None:
        found = ask(
            self.finished(),
            *[failed_pod(index) for index in range(4)],
            rendezvous=make_view(outcome=make_outcome("failed", "X")),
        )
        assert condition(found, ConditionType.SUCCEEDED)[0] == ConditionStatus.TRUE
        assert condition(found, ConditionType.FAILED) == ("", "")
        assert names(found, CreatePod) == []

    def test_running_pods_are_deleted_after_a_grace_period(self) -> None:
        assert ask(self.finished(), *self.pods).requeue_at == at(10)
        assert len(names(ask(self.finished(), *self.pods, seconds=10), DeletePod)) == 4

    def test_etcd_and_services_are_deleted_when_nothing_runs(self) -> None:
        objects = owned(ask(make_job(), admission=ADMITTED, settings=Settings()))
        running = ask(self.finished(), *self.pods, objects=objects, settings=Settings())
        assert names(running, DeleteObject) == []
        done = [make_pod(index, PodPhase.SUCCEEDED) for index in range(4)]
        ended = ask(self.finished(), *done, objects=objects, settings=Settings())
        assert sorted(names(ended, DeleteObject)) == ["digits", "digits-etcd", "digits-etcd"]
        assert ended.target is None

    def test_keys_in_an_external_etcd_are_deleted(self) -> None:
        found = ask(self.finished(), make_pod(0, PodPhase.SUCCEEDED), rendezvous=make_view(outcome=make_outcome()))
        assert [type(action) for action in found.actions] == [ClearRun]
        assert found.target is not None
        after = ask(self.finished(), make_pod(0, PodPhase.SUCCEEDED), rendezvous=make_view())
        assert (after.actions, after.target) == ((), None)

    def test_an_operator_that_starts_anew_looks_for_keys_before_it_deletes_objects(self) -> None:
        objects = owned(ask(make_job(), admission=ADMITTED))
        new = make_view(connectivity=Connectivity.CONNECTING)
        found = ask(self.finished(), make_pod(0, PodPhase.SUCCEEDED), objects=objects, rendezvous=new)
        assert found.actions == ()
        assert found.target is not None


def test_the_startup_deadline_fails_a_job_that_cannot_start() -> None:
    status = make_status(ConditionType.ACCEPTED, start_time=at(-60))
    job = make_job(spec={"lifecycle": {"startupDeadlineSeconds": 60, "cleanPods": "None"}}, status=status)
    blocked = Blocked(reason="Unschedulable", message="0/3 nodes are available")
    pods = [make_pod(0), make_pod(1, PodPhase.PENDING, blocked=blocked)]
    found = ask(job, *pods, rendezvous=make_view())
    assert condition(found, ConditionType.FAILED) == ("True", "StartupDeadlineExceeded")
    assert "0/3 nodes are available" in said(found, ConditionType.FAILED)
    assert len(names(ask(follow(job, found), *pods, seconds=10), DeletePod)) == 2
    assert ask(job, *pods, seconds=-10).requeue_at == NOW


def test_a_finished_job_is_deleted_after_its_ttl() -> None:
    status = make_status(ConditionType.SUCCEEDED, completion_time=NOW)
    job = make_job(spec={"lifecycle": {"ttlSecondsAfterFinished": 60}}, status=status)
    assert ask(job, seconds=10).requeue_at == at(60)
    assert names(ask(job, seconds=60), DeleteJob) == ["digits"]
