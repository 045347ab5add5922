"""spec.suspend: a suspended job holds nothing and resumes as a new run."""

from __future__ import annotations

from collections.abc import Callable

from hack.support import eventually
from tests.integration.operator.kube import Json, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents
from tests.integration.operator.shared import operator
from tests.integration.operator.test_workers import nodes

__all__ = ["nodes", "operator"]


def change(ns: Namespace, spec: Json) -> None:
    ns.patch("elasticjobs", "digits", {"spec": spec})


def environment(pod: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


def test_a_suspended_job_holds_nothing_and_resumes_as_a_new_run_with_a_new_template(
    ns: Namespace, operator: Operator, training: Callable[..., Agents], agents_of: Callable[[str], Agents]
) -> None:
    agents = training(replicas=2)
    agents.plan(4, size=2, restart_count=2)
    agents.progress(120)
    eventually(lambda: ns.status("digits").get("round") == 4 and ns.status("digits").get("progress"), what="it trains")
    uid = ns.job("digits")["metadata"]["uid"]
    change(ns, {"suspend": True})
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
    change(ns, {"suspend": False, "workers": {"template": template}})
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
