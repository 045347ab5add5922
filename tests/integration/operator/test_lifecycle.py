"""The life of a job from apply to its end, on a real API server and a real etcd."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from elasticjob_runtime.contract import OutcomeState, PlanReason

from hack.cluster.loopback import ControlPlane
from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents
from tests.integration.operator.shared import operator

__all__ = ["operator"]


def test_a_job_without_an_endpoint_gets_pods_services_and_an_etcd(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(endpoint="", replicas=3)
    eventually(lambda: len(ns.workers()) == 3, what="three worker pods")
    eventually(lambda: set(ns.all("services")) == {"digits", "digits-etcd"}, what="both services")
    eventually(lambda: set(ns.all("statefulsets")) == {"digits-etcd"}, what="etcd's StatefulSet")
    uid = ns.job("digits")["metadata"]["uid"]
    owned = [*ns.workers().values(), *ns.all("services").values(), *ns.all("statefulsets").values()]
    assert all(each["metadata"]["ownerReferences"][0]["uid"] == uid for each in owned)
    pod = ns.workers()["digits-worker-0"]
    environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert environment["PET_RDZV_ENDPOINT"] == f"https://digits-etcd.{ns.name}.svc:2379"
    assert environment["PET_RDZV_ID"] == f"{uid}-1"
    assert ns.all("services")["digits-etcd"]["spec"]["clusterIP"] not in ("", "None")
    assert ns.all("services")["digits"]["spec"]["clusterIP"] == "None"
    starting = eventually(lambda: ns.condition("digits", "RendezvousReady"), what="RendezvousReady is told")
    assert (starting["status"], starting["reason"]) == ("False", "EtcdStarting")


def test_status_shows_plan_and_progress(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=2)
    status = ns.status("digits")
    assert (status["worldSize"], status["round"], status["workers"], status["readyReplicas"]) == (2, 1, "2/2", 2)
    agents.progress(120, steps_per_second=3.5, last_checkpoint_step=100, metrics={"loss": 0.25})
    eventually(lambda: ns.status("digits").get("progress", {}).get("step") == 120, what="progress")
    progress = ns.status("digits")["progress"]
    assert (progress["lastCheckpointStep"], progress["metrics"]) == (100, {"loss": "0.25"})
    agents.plan(2, size=2, restart_count=1, reason=PlanReason.WORKER_FAILED)
    eventually(lambda: ns.status("digits").get("restarts", {}).get("total") == 1, what="the agents' restart is counted")
    assert ns.status("digits")["round"] == 2


def test_a_worker_failure_shows_as_restarting_until_training_continues(
    ns: Namespace, training: Callable[..., Agents]
) -> None:
    agents = training(replicas=2)
    agents.fail(1, "digits-worker-1", "ValueError: no")
    eventually(lambda: ns.is_true("digits", "Restarting"), what="Restarting")
    assert ns.condition("digits", "Restarting")["reason"] == "WorkerFailed"
    last = ns.status("digits")["lastFailure"]
    assert (last["worker"], last["rank"], last["exitCode"]) == ("digits-worker-1", 1, 1)
    assert "Traceback" in last["message"]
    agents.plan(2, size=2, restart_count=1, reason=PlanReason.WORKER_FAILED)
    eventually(lambda: ns.is_true("digits", "Running"), what="Running again")
    assert ns.condition("digits", "Restarting")["status"] == "False"


def test_a_succeeded_job_keeps_finished_pods_and_frees_everything_else(
    ns: Namespace, control_plane_server: ControlPlane, training: Callable[..., Agents]
) -> None:
    agents = training(replicas=3)
    agents.outcome(OutcomeState.SUCCEEDED, "WorkersSucceeded")
    control_plane_server.kubectl(
        "--namespace", ns.name, "wait", "ej/digits", "--for=condition=Succeeded", "--timeout=30s"
    )
    for pod in ("digits-worker-0", "digits-worker-1"):
        ns.end(pod, 0, at=rfc3339())
    # The third agent never ends: its pod is deleted after the grace.
    eventually(lambda: set(ns.workers()) == {"digits-worker-0", "digits-worker-1"}, what="only ended pods are left")
    eventually(lambda: not ns.all("services"), what="the services are gone")
    eventually(lambda: not agents.keys_left(), what="the run's keys are gone")
    status = ns.status("digits")
    assert status["worldSize"] == 0
    assert status["completionTime"]
    assert ns.condition("digits", "Failed")["status"] == "False"


def test_the_managed_etcd_is_deleted_when_the_job_finishes(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(endpoint="")
    eventually(lambda: len(ns.workers()) == 2, what="worker pods")
    for pod in ns.workers():
        ns.run(pod)
        ns.end(pod, 0, at=rfc3339())
    # There is no etcd: all pods ended well, which is enough.
    eventually(lambda: ns.is_true("digits", "Succeeded"), what="Succeeded")
    eventually(lambda: not ns.all("statefulsets") and not ns.all("services"), what="etcd and services are gone")
    assert len(ns.workers()) == 2, "their logs stay readable"


def test_a_deleted_job_leaves_nothing_behind(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=2)
    ns.delete("elasticjobs", "digits")
    eventually(lambda: not ns.all("pods") and not ns.all("services"), what="the garbage collector took everything")
    eventually(lambda: not agents.keys_left(), what="the run's keys are gone")


def test_an_invalid_pod_template_is_rejected_with_the_servers_message(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(template={"spec": {"containers": [{"name": "trainer", "image": "x", "ports": [{"containerPort": 99999}]}]}})
    refused = eventually(lambda: ns.condition("digits", "Accepted"), what="Accepted is told")
    assert (refused["status"], refused["reason"]) == ("False", "InvalidPodTemplate")
    assert "must be between 1 and 65535" in refused["message"]
    assert not ns.all("pods")
    assert not ns.all("services")


def test_status_is_not_written_when_nothing_changed(ns: Namespace, training: Callable[..., Agents]) -> None:
    training(replicas=2)
    before = ns.job("digits")["metadata"]["resourceVersion"]
    ns.patch("pods", "digits-worker-0", {"metadata": {"annotations": {"touched": "1"}}})
    ns.scale("digits", 3)
    eventually(lambda: len(ns.workers()) == 3, what="a third pod: the operator has looked")
    ns.scale("digits", 2)
    eventually(lambda: len(ns.workers()) == 2, what="two pods")
    quiet = eventually(lambda: _unchanged(ns), what="no more writes")
    assert int(quiet) > int(before)


def _unchanged(ns: Namespace) -> str:
    """resourceVersion of the job, once a whole series of reads found the same."""
    versions = {ns.job("digits")["metadata"]["resourceVersion"] for _ in range(100)}
    return versions.pop() if len(versions) == 1 else ""


def test_the_startup_deadline_fails_a_job_whose_pods_stay_pending(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    submit(spec={"lifecycle": {"startupDeadlineSeconds": 3, "cleanPods": "None"}})
    eventually(lambda: len(ns.workers()) == 2, what="workers")
    started = str(eventually(lambda: ns.status("digits").get("startTime"), what="status tells of the start"))
    operator.kill()  # the time runs on
    operator.restart()
    eventually(lambda: ns.is_true("digits", "Failed"), what="Failed")
    assert ns.condition("digits", "Failed")["reason"] == "StartupDeadlineExceeded"
    assert "startupDeadlineSeconds (3 s): 0 of 2 worker pods are ready" in ns.condition("digits", "Failed")["message"]
    eventually(lambda: not ns.workers(), what="its pods hold nothing any more")
    ended = ns.status("digits")["completionTime"]
    assert seconds_between(started, ended) >= 3


def test_a_finished_job_is_deleted_after_its_ttl(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=1, spec={"lifecycle": {"ttlSecondsAfterFinished": 2}})
    agents.outcome(OutcomeState.SUCCEEDED, "WorkersSucceeded")
    ns.end("digits-worker-0", 0, at=rfc3339())
    eventually(lambda: ns.get("elasticjobs", "digits") is None, what="the job is gone")
    eventually(lambda: not ns.all("pods"), what="and its pod")


def test_a_job_managed_by_another_controller_is_ignored(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit("theirs", spec={"managedBy": "kueue.x-k8s.io/multikueue"})
    submit("ours", replicas=1, spec={"managedBy": "elasticjob.dev/operator"})
    eventually(lambda: set(ns.workers()) == {"ours-worker-0"}, what="the operator has seen both")
    assert "status" not in ns.job("theirs")


def seconds_between(first: str, second: str) -> float:
    return (datetime.datetime.fromisoformat(second) - datetime.datetime.fromisoformat(first)).total_seconds()


@pytest.mark.usefixtures("operator")
def test_a_job_that_cannot_start_is_mended_by_applying_it_again(ns: Namespace, submit: Callable[..., str]) -> None:
    """In one step, as GitOps does it: the run with the old template makes room for the next one."""
    submit(replicas=2)
    eventually(lambda: len(ns.workers()) == 2, what="two worker pods with the wrong image")
    template = {"spec": {"containers": [{"name": "trainer", "image": "right"}]}}
    ns.patch("elasticjobs", "digits", {"spec": {"workers": {"template": template}}})

    def mended() -> bool:
        pods = ns.workers().values()
        images = [pod["spec"]["containers"][0]["image"] for pod in pods]
        return images == ["right"] * 2 and {pod["metadata"]["labels"]["elasticjob.dev/run"] for pod in pods} == {"2"}

    eventually(mended, what="two worker pods of the next run")


@pytest.mark.usefixtures("operator")
def test_a_job_with_an_invalid_template_is_mended_by_applying_it_again(
    ns: Namespace, submit: Callable[..., str]
) -> None:
    submit(template={"spec": {"containers": [{"name": "trainer", "image": "x", "ports": [{"containerPort": 99999}]}]}})
    eventually(lambda: ns.condition("digits", "Accepted").get("reason") == "InvalidPodTemplate", what="the condition")
    template = {"spec": {"containers": [{"name": "trainer", "image": "x"}]}}
    ns.patch("elasticjobs", "digits", {"spec": {"workers": {"template": template}}})
    eventually(lambda: len(ns.workers()) == 2, what="two worker pods")
