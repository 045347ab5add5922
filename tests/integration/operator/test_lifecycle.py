"""A job rests, goes on, runs out of time, is deleted, or is another controller's."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from elasticjob_runtime.contract import OutcomeState

from hack.support import eventually
from tests.integration.operator.conftest import TEMPLATE, rfc3339
from tests.integration.operator.kube import Json, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents


def change(ns: Namespace, spec: Json) -> None:
    ns.patch("elasticjobs", "digits", {"spec": spec})


def environment(pod: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


def test_suspended_job_holds_nothing_and_goes_on_as_a_new_run_with_another_template(
    ns: Namespace, operator: Operator, training: Callable[..., Agents], agents_of: Callable[[str], Agents]
) -> None:
    agents = training(replicas=2)
    agents.plan(4, size=2, restart_count=2)
    agents.progress(120)
    eventually(lambda: ns.status("digits").get("round") == 4 and ns.status("digits").get("progress"), what="it trains")
    uid = ns.job("digits")["metadata"]["uid"]
    change(ns, {"lifecycle": {"suspend": True}})
    eventually(lambda: ns.is_true("digits", "Suspended"), what="Suspended")
    assert not ns.workers()
    eventually(lambda: not ns.all("services") and not agents.keys_left(), what="services and keys are gone")
    status = ns.status("digits")
    assert (status["restarts"]["total"], status["progress"]["step"], status["worldSize"], status["workers"]) == (
        2,
        120,
        0,
        "0/2",
    )
    assert ns.condition("digits", "Running")["reason"] == "Suspended"
    operator.kill()
    operator.restart()
    template = {"spec": {"containers": [{"name": "trainer", "image": "second"}]}}
    change(ns, {"lifecycle": {"suspend": False}, "workers": {"template": template}})
    eventually(lambda: len(ns.workers()) == 2, what="workers again")
    pod = ns.workers()["digits-worker-0"]
    assert pod["spec"]["containers"][0]["image"] == "second"
    assert (environment(pod)["PET_RDZV_ID"], environment(pod)["ELASTICJOB_UID"]) == (f"{uid}-2", uid)
    eventually(lambda: ns.status("digits").get("rendezvous", {}).get("id") == f"{uid}-2", what="the new run in status")
    assert ns.condition("digits", "Suspended")["status"] == "False"
    assert ns.status("digits")["round"] == 0
    for name in ns.workers():
        ns.run(name)
    again = agents_of("digits")
    again.plan(1, size=2)
    eventually(lambda: ns.is_true("digits", "Running"), what="Running again")
    status = ns.status("digits")
    assert (status["round"], status["restarts"]["total"], status["worldSize"]) == (1, 2, 2)
    again.plan(2, size=2, restart_count=1)
    eventually(
        lambda: ns.status("digits").get("restarts", {}).get("total") == 3,
        what="the second run's restart is counted on top",
    )


def test_managed_etcd_of_a_suspended_job_goes_and_comes_back(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(endpoint="")
    eventually(lambda: ns.all("statefulsets") and len(ns.workers()) == 2, what="etcd and workers")
    change(ns, {"lifecycle": {"suspend": True}})
    eventually(lambda: not ns.all("statefulsets") and not ns.all("services") and not ns.workers(), what="all is gone")
    change(ns, {"lifecycle": {"suspend": False}})
    eventually(lambda: ns.all("statefulsets") and len(ns.workers()) == 2, what="all is back")


def test_job_applied_suspended_waits_and_its_first_run_is_its_first(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(spec={"lifecycle": {"suspend": True}})
    eventually(lambda: ns.is_true("digits", "Suspended"), what="Suspended")
    assert not ns.workers()
    assert "startTime" not in ns.status("digits")
    change(ns, {"lifecycle": {"suspend": False}})
    eventually(lambda: len(ns.workers()) == 2, what="workers")
    assert environment(ns.workers()["digits-worker-0"])["PET_RDZV_ID"].endswith("-1")


def test_startup_deadline_fails_a_job_whose_workers_stay_pending(
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


def test_active_deadline_ends_a_job_that_trains(ns: Namespace, training: Callable[..., Agents]) -> None:
    training(replicas=1, spec={"lifecycle": {"activeDeadlineSeconds": 5}})
    eventually(lambda: ns.is_true("digits", "Failed"), what="Failed")
    assert ns.condition("digits", "Failed")["reason"] == "DeadlineExceeded"
    eventually(lambda: not ns.workers(), what="the worker is gone")


def test_ended_job_is_deleted_after_its_time(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=1, spec={"lifecycle": {"ttlSecondsAfterFinished": 2}})
    agents.outcome(OutcomeState.SUCCEEDED, "WorkersSucceeded")
    ns.end("digits-worker-0", 0, at=rfc3339())
    eventually(lambda: ns.get("elasticjobs", "digits") is None, what="the job is gone")
    eventually(lambda: not ns.all("pods"), what="and its pod")


def test_job_of_another_controller_is_left_alone(ns: Namespace, operator: Operator, submit: Callable[..., str]) -> None:
    assert operator
    submit("theirs", spec={"managedBy": "kueue.x-k8s.io/multikueue"})
    submit("ours", replicas=1, spec={"managedBy": "elasticjob.dev/operator"})
    eventually(lambda: set(ns.workers()) == {"ours-worker-0"}, what="the operator has seen both")
    assert "status" not in ns.job("theirs")


def test_pods_get_the_time_that_their_workers_need_to_save(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(replicas=1, spec={"lifecycle": {"gracefulShutdownSeconds": 90}}, template=TEMPLATE)
    eventually(ns.workers, what="a worker")
    pod = ns.workers()["digits-worker-0"]
    assert (pod["spec"]["terminationGracePeriodSeconds"], environment(pod)["PET_SHUTDOWN_TIMEOUT"]) == (95, "90")


def seconds_between(first: str, second: str) -> float:
    return (datetime.datetime.fromisoformat(second) - datetime.datetime.fromisoformat(first)).total_seconds()
