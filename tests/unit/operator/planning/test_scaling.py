"""Plans when another number of workers is wanted."""

from __future__ import annotations

from elasticjob_api import ConditionType
from elasticjob_operator.planning import CreateObject, CreatePod, DeleteObject, DeletePod, Plan, PublishSpec
from elasticjob_operator.state import Connectivity, Kind, RendezvousView

from tests.unit.operator.builders import NOW, at, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.planning.plans import (
    ADMITTED,
    METRICS,
    ask,
    condition,
    follow,
    made,
    names,
    owned,
    published,
    trained,
)


class TestShrink:
    """Draining is published first, so that no member waits for a pod that is about to be deleted."""

    job = trained(replicas=2)
    pods = tuple(make_pod(index) for index in range(4))
    draining = ("digits-worker-2", "digits-worker-3")

    def shrink(self, view: RendezvousView) -> Plan:
        return ask(self.job, *self.pods, rendezvous=view)

    def test_draining_is_published_before_any_pod_is_deleted(self) -> None:
        found = self.shrink(make_view(plan=make_plan(), spec=published(self.job)))
        assert names(found, DeletePod) == []
        (action,) = made(found, PublishSpec)
        assert tuple(action.spec.draining) == self.draining

    def test_the_highest_indices_are_deleted(self) -> None:
        found = self.shrink(make_view(plan=make_plan(), spec=published(self.job, *self.draining)))
        assert names(found, DeletePod) == ["digits-worker-3", "digits-worker-2"]
        assert not any(action.force for action in found.actions if isinstance(action, DeletePod))

    def test_nothing_is_deleted_before_a_restarted_operator_has_reached_etcd(self) -> None:
        assert names(self.shrink(make_view(Connectivity.CONNECTING)), DeletePod) == []

    def test_pods_are_deleted_although_etcd_is_unreachable(self) -> None:
        assert names(self.shrink(make_view(Connectivity.UNREACHABLE)), DeletePod) == [
            "digits-worker-3",
            "digits-worker-2",
        ]


class TestScaling:
    def test_metrics_create_an_autoscaler_with_the_job_s_bounds(self) -> None:
        found = ask(make_job(spec={"scaling": {"metrics": METRICS}}), admission=ADMITTED)
        (scaler,) = [
            action.body
            for action in found.actions
            if isinstance(action, CreateObject) and action.kind is Kind.AUTOSCALER
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

    def test_the_autoscaler_is_deleted_with_the_metrics(self) -> None:
        objects = owned(ask(make_job(spec={"scaling": {"metrics": METRICS}}), admission=ADMITTED))
        found = ask(trained(), *[make_pod(index) for index in range(4)], objects=objects)
        assert [(action.kind, action.name) for action in made(found, DeleteObject)] == [(Kind.AUTOSCALER, "digits")]

    def test_a_size_that_is_not_allowed_is_rounded_down(self) -> None:
        found = ask(
            make_job(replicas=7, workers={"allowedReplicas": [2, 4, 8]}), admission=ADMITTED, rendezvous=make_view()
        )
        assert len(names(found, CreatePod)) == 4
        (action,) = made(found, PublishSpec)
        assert (action.spec.wanted, action.spec.allowed) == (4, [2, 4, 8])
        assert (found.status.desired_replicas, found.status.workers) == (4, "0/4")

    def test_a_scale_up_is_delayed_but_lost_workers_are_replaced_at_once(self) -> None:
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
