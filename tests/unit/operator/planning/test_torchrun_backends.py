"""Plans of a job with torchrun's own rendezvous backends."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import ConditionType, ElasticJob
from elasticjob_operator.kube.convert import pod_of
from elasticjob_operator.planning import CreateObject, CreatePod, DeletePod
from elasticjob_operator.resources.pods import worker_pod
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import PodPhase

from tests.unit.operator.builders import NOW, UID, ended, failed_pod, make_job, make_pod, make_status
from tests.unit.operator.planning.plans import ADMITTED, ask, condition, follow, made, names, rendezvous_in

CREATED = {"uid": "u", "creationTimestamp": "2026-01-01T12:00:00Z"}


class TestC10d:
    """Nothing is heard of the agents: pods tell."""

    def job(self, *true: ConditionType, replicas: int = 2, policy: Any = None, **status: Any) -> ElasticJob:
        known = make_status(*(true or (ConditionType.ACCEPTED,)), start_time=NOW, **status)
        spec = {"rendezvous": {"backend": "c10d"}, "failurePolicy": {"maxRestarts": 3, **(policy or {})}}
        return make_job(replicas=replicas, spec=spec, status=known)

    def test_worker_0_hosts_the_store_and_no_etcd_is_created(self) -> None:
        found = ask(self.job(), settings=Settings())
        assert names(found, CreateObject) == ["digits"]
        assert found.target is None
        assert rendezvous_in(found).endpoint == "digits-worker-0.digits.ml.svc:29400"
        pods = [action.body for action in made(found, CreatePod)]
        environments = [
            {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
            for pod in pods
        ]
        assert [environment["PET_RDZV_CONF"] for environment in environments] == ["is_host=true", "is_host=false"]
        assert {environment["PET_RDZV_ENDPOINT"] for environment in environments} == {
            "digits-worker-0.digits.ml.svc:29400"
        }
        # Else torchrun restarts into the store of the round before, and hangs there after any lost pod.
        assert {environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] for environment in environments} == {"1"}
        assert condition(found, ConditionType.RENDEZVOUS_READY) == ("False", "StoreStarting")

    def test_ready_pods_are_training(self) -> None:
        found = ask(self.job(), make_pod(0), make_pod(1))
        assert condition(found, ConditionType.RUNNING) == ("True", "Training")
        assert condition(found, ConditionType.RENDEZVOUS_READY) == ("True", "StoreReady")
        assert found.requeue_at is None

    def test_a_scale_down_keeps_worker_0(self) -> None:
        job = self.job(replicas=2)
        found = ask(job, make_pod(0, PodPhase.PENDING), make_pod(1), make_pod(2))
        assert names(found, DeletePod) == ["digits-worker-2"]

    def test_training_resumes_once_a_killed_pod_is_replaced(self) -> None:
        job = self.job(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1)
        first = ask(job, make_pod(0), failed_pod(1, code=137))
        assert first.status.restarts.total == 1
        assert condition(first, ConditionType.RESTARTING) == ("True", "WorkerFailed")
        again = ask(follow(job, first), make_pod(0), make_pod(1, incarnation=1, created=9), seconds=9)
        assert condition(again, ConditionType.RUNNING) == ("True", "Training")
        assert condition(again, ConditionType.RESTARTING) == ("False", "Resumed")

    def test_a_failure_that_closes_the_rendezvous_starts_another_attempt_with_all_pods(self) -> None:
        """A pod that joins a closed rendezvous fails: one crash would use up the budget."""
        job = self.job(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1)
        old = [make_pod(0), failed_pod(1)]
        counted = ask(job, *old)
        assert (counted.status.restarts.total, rendezvous_in(counted).id) == (1, f"{UID}-1")
        written = ask(follow(job, counted), *old)
        assert rendezvous_in(written).id == f"{UID}-1.2"
        assert not names(written, DeletePod), "the attempt is in status before anything is deleted"
        assert written.requeue_at == NOW
        ended = ask(follow(job, written), *old)
        assert sorted(names(ended, DeletePod)) == ["digits-worker-0", "digits-worker-1"]
        assert not names(ended, CreatePod), "no pod of the next attempt meets one of the last"
        late = ask(follow(job, ended), make_pod(0, deletion_timestamp=30))
        assert not names(late, CreatePod)
        found = ask(follow(job, late))
        pods = [action.body for action in made(found, CreatePod)]
        ids = [
            next(
                variable["value"]
                for variable in pod["spec"]["containers"][0]["env"]
                if variable["name"] == "PET_RDZV_ID"
            )
            for pod in pods
        ]
        assert ids == [f"{UID}-1.2"] * 2
        assert [pod_of({**pod, "metadata": {**pod["metadata"], **CREATED}}).attempt for pod in pods] == [2, 2]
        again = ask(follow(job, found), *(make_pod(index, attempt=2, incarnation=1) for index in (0, 1)), seconds=9)
        assert condition(again, ConditionType.RUNNING) == ("True", "Training")
        assert (again.status.restarts.total, again.status.start_time) == (1, NOW), "the run goes on"

    def test_a_job_of_which_a_pod_has_succeeded_begins_no_other_attempt(self) -> None:
        """A torchrun may fail while it ends, after another one has ended well."""
        job = self.job(ConditionType.ACCEPTED, ConditionType.RUNNING, replicas=3, round=1)
        pods = [make_pod(0, PodPhase.SUCCEEDED, end=ended(0)), failed_pod(1, at=1), make_pod(2)]
        for seconds in (1.2, 1.3):
            found = ask(job, *pods, seconds=seconds)
            assert rendezvous_in(found).id == f"{UID}-1"
            job = follow(job, found)
        assert condition(ask(job, *pods, seconds=11), ConditionType.SUCCEEDED) == ("True", "WorkersSucceeded")

    def test_a_rule_ends_the_job_for_a_failure_that_is_known_after_the_attempt_ended(self) -> None:
        """The other pods fail because of it, and may be reported first."""
        rules = [{"action": "Fail", "reasons": ["OutOfMemory"]}]
        job = self.job(ConditionType.ACCEPTED, ConditionType.RUNNING, policy={"rules": rules}, round=1)
        for seconds in (1.2, 1.3):
            job = follow(job, ask(job, make_pod(0), failed_pod(1, at=1), seconds=seconds))
        first = failed_pod(0, code=137, reason="OOMKilled", at=0.5)
        found = ask(job, first, failed_pod(1, at=1), seconds=1.6)
        assert condition(found, ConditionType.FAILED) == ("True", "FailedByRule")

    def test_a_surplus_pod_that_closes_the_rendezvous_ends_the_attempt(self) -> None:
        job = self.job(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1)
        pods = [make_pod(0), failed_pod(1), make_pod(2), make_pod(3)]
        job = follow(job, ask(job, *pods))
        pods = [pod for pod in pods if pod.index in (0, 1, 2)]
        assert rendezvous_in(ask(job, *pods)).id == f"{UID}-1.2"

    def test_a_later_run_begins_with_its_first_attempt(self) -> None:
        known = {"id": f"{UID}-1.7", "backend": "c10d"}
        found = ask(self.job(ConditionType.ACCEPTED, ConditionType.SUSPENDED, rendezvous=known))
        assert rendezvous_in(found).id == f"{UID}-2"

    def test_no_etcd_is_created_for_backend_etcd_v2(self) -> None:
        rendezvous = {"type": "External", "backend": "etcd-v2", "endpoint": "old:2379"}
        found = ask(
            make_job(spec={"rendezvous": rendezvous}), admission=ADMITTED, settings=Settings(endpoint="v3:2379")
        )
        known = rendezvous_in(found)
        assert (known.id, known.backend, known.endpoint) == (f"{UID}-1", "etcd-v2", "old:2379")
        assert found.target is None
        assert condition(found, ConditionType.RENDEZVOUS_READY) == ("", "")

    @pytest.mark.parametrize(("backend", "expected"), [("etcd-v2", "1"), ("etcd-v3", None)])
    def test_workers_of_etcd_v2_meet_in_a_store_of_their_round(self, backend: str, expected: str | None) -> None:
        """torch's default, the store of the round before, leaves them waiting there after a crash."""
        pod = worker_pod(make_job(spec={"rendezvous": {"backend": backend}}), index=0, run=1, endpoint="old:2379")
        environment = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
        assert environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == expected
