"""Plans of a job that trains: nothing to do, pods that fail, an etcd that comes back empty."""

from __future__ import annotations

from elasticjob_api import ConditionType, OptimizerSteps, RendezvousStatus, ReplicaWorkers
from elasticjob_operator.planning import CreatePod, DeletePod, EvictMember, PublishSpec
from elasticjob_operator.policies.lifecycle import forget_last_run
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.contract import ProgressValue, ReplicaValue

from tests.unit.operator.builders import (
    NOW,
    UID,
    at,
    failed_pod,
    make_failure,
    make_plan,
    make_pod,
    make_status,
    make_view,
)
from tests.unit.operator.planning.plans import ask, condition, follow, made, names, owned, published, trained
from tests.unit.operator.tables import table


def test_steady_state_does_nothing() -> None:
    job = trained()
    pods = [make_pod(index) for index in range(4)]
    first = ask(job, *pods, rendezvous=make_view(plan=make_plan(), spec=published(job)))
    again = ask(
        follow(job, first),
        *pods,
        seconds=100,
        objects=owned(first),
        rendezvous=make_view(plan=make_plan(), spec=published(job)),
    )
    assert again.actions == ()
    assert again.events == ()
    assert again.status == first.status
    assert again.requeue_at is None


def test_status_has_the_world_size_and_round_of_the_plan() -> None:
    found = ask(trained(), *[make_pod(index) for index in range(4)], rendezvous=make_view(plan=make_plan(3)))
    assert condition(found, ConditionType.RUNNING) == ("True", "Training")
    assert (found.status.world_size, found.status.round, found.status.workers) == (4, 3, "4/4")
    assert (found.status.replicas, found.status.ready_replicas) == (4, 4)


def test_status_keeps_which_worker_pods_are_a_replica_until_the_next_run() -> None:
    replica = ReplicaValue(index=0, world=1, incarnation="i", members=("digits-worker-1-gwtch", "digits-worker-0-x"))
    job, pods = trained(workers={"replicaSize": 2}), [make_pod(0), make_pod(1)]
    found = ask(job, *pods, rendezvous=make_view(plan=make_plan(), replicas={"digits-worker-0-x": replica}))
    assert found.status.replica_workers == (ReplicaWorkers(replica=0, workers=(1, 0)),)
    lost = ask(follow(job, found), *pods, rendezvous=make_view())
    assert lost.status.replica_workers == found.status.replica_workers
    assert forget_last_run(lost.status).replica_workers is None


def test_the_spec_is_published_again_to_an_etcd_that_lost_its_data() -> None:
    job = trained()
    found = ask(job, *[make_pod(index) for index in range(4)], rendezvous=make_view())
    (action,) = made(found, PublishSpec)
    assert action.spec == published(job)


def test_round_and_restarts_never_decrease_when_etcd_loses_its_data() -> None:
    job = trained(status=make_status(ConditionType.ACCEPTED, restarts=2, round=7))
    found = ask(job, *[make_pod(index) for index in range(4)], rendezvous=make_view())
    assert (found.status.round, found.status.restarts.total) == (7, 2)


def test_the_plan_says_when_training_has_stalled_unless_it_goes_on() -> None:
    pods = [make_pod(index, ready=True) for index in range(4)]
    progress = ProgressValue(step=7, round=1)
    view = make_view(plan=make_plan(), progress=progress, progress_seen_at=at(-20))
    assert ask(trained(), *pods, rendezvous=view).stalls_at == at(40)
    silent = make_view(plan=make_plan(), progress=progress, progress_seen_at=at(-70))
    found = ask(trained(), *pods, rendezvous=silent)
    assert (condition(found, ConditionType.STALLED), found.stalls_at) == (("True", "NoProgress"), None)
    again = ask(follow(trained(), found), *pods, rendezvous=view)
    assert condition(again, ConditionType.STALLED) == ("False", "Progressing")


def test_a_deleted_pod_is_replaced_with_the_same_index() -> None:
    found = ask(trained(), make_pod(0), make_pod(1), make_pod(3), rendezvous=make_view(plan=make_plan()))
    assert names(found, CreatePod) == ["digits-worker-2"]


def test_a_restart_by_the_agents_is_counted_and_touches_no_pod() -> None:
    view = make_view(plan=make_plan(2, restart_count=1), failure=make_failure(1))
    found = ask(trained(), *[make_pod(index) for index in range(4)], rendezvous=view)
    assert found.status.restarts.total == 1
    assert found.status.last_failure is not None
    assert found.status.last_failure.worker == "digits-worker-1"
    assert names(found, CreatePod) == names(found, DeletePod) == []


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

    def test_that_lost_its_membership_does_not_count_and_is_replaced_at_once(self) -> None:
        found = ask(self.job, *self.pods[:3], failed_pod(3, code=75), rendezvous=self.view)
        assert names(found, DeletePod) == ["digits-worker-3"]
        assert found.status.restarts.total == 0

    def test_fails_the_job_once_the_restart_budget_is_exceeded(self) -> None:
        job = trained(max_restarts=0)
        found = ask(job, *self.pods, rendezvous=self.view)
        assert condition(found, ConditionType.FAILED) == ("True", "MaxRestartsExceeded")
        assert condition(found, ConditionType.RUNNING) == ("False", "Finished")
        assert found.status.last_failure is not None
        assert found.status.last_failure.worker == "digits-worker-3"
        assert found.status.completion_time == NOW


def test_pods_of_an_earlier_run_are_deleted() -> None:
    status = make_status(ConditionType.ACCEPTED, rendezvous=RendezvousStatus(id=f"{UID}-2", endpoint="etcd:2379"))
    found = ask(trained(replicas=2, status=status), make_pod(0, run=1), make_pod(1, run=2), rendezvous=make_view())
    assert names(found, DeletePod) == ["digits-worker-0"]
    assert names(found, CreatePod) == [], "its name is still held"


@table(
    "connectivity, answered, running, etcd",
    {
        "not known yet": (Connectivity.REACHABLE, -4, "Training", "EtcdReady"),
        "known": (Connectivity.UNREACHABLE, -15, "RendezvousLost", "EtcdUnreachable"),
        "etcd has just responded": (Connectivity.REACHABLE, -1, "WaitingForWorkers", "EtcdReady"),
    },
)
def test_an_unreachable_etcd_is_told_before_the_pods_that_are_cut_off_with_it(
    connectivity: Connectivity, answered: float, running: str, etcd: str
) -> None:
    """The nodes of worker pods become silent before the connection to etcd is known to be dead."""
    pods = [make_pod(index, ready=False) for index in range(4)]
    view = make_view(connectivity, plan=make_plan(), answered_at=at(answered), spec=published(trained()))
    found = ask(trained(), *pods, rendezvous=view)
    assert condition(found, ConditionType.RUNNING)[1] == running
    assert condition(found, ConditionType.RENDEZVOUS_READY)[1] == etcd
    assert found.status.world_size == (4 if running == "Training" else 0)
    assert running != "Training" or found.requeue_at == at(1)


def test_counted_steps_are_in_status_until_the_script_reports_its_progress() -> None:
    counted = ProgressValue(step=0, round=1, optimizer_steps=70, steps_per_second=2.5, updated_at=NOW.timestamp())
    view = make_view(plan=make_plan(), counted=counted)
    pods = [make_pod(index) for index in range(4)]
    found = ask(trained(), *pods, rendezvous=view).status
    steps = OptimizerSteps(count=70, per_second=2.5, updated_at=NOW)
    assert (found.optimizer_steps, found.progress) == (steps, None)
    before = trained(status=make_status(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1, optimizer_steps=steps))
    kept = ask(before, *pods, rendezvous=make_view(plan=make_plan())).status
    assert kept.optimizer_steps == steps
    reported = make_view(plan=make_plan(), progress=ProgressValue(step=3, round=1))
    assert ask(before, *pods, rendezvous=reported).status.optimizer_steps is None
