"""How a job starts, on a real API server and a real etcd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hack.support import eventually
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
    assert all(item["metadata"]["ownerReferences"][0]["uid"] == uid for item in owned)
    pod = ns.workers()["digits-worker-0"]
    environment = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
    assert environment["PET_RDZV_ENDPOINT"] == f"https://digits-etcd.{ns.name}.svc:2379"
    assert environment["PET_RDZV_ID"] == f"{uid}-1"
    assert ns.all("services")["digits-etcd"]["spec"]["clusterIP"] not in ("", "None")
    assert ns.all("services")["digits"]["spec"]["clusterIP"] == "None"
    starting = eventually(lambda: ns.condition("digits", "RendezvousReady"), what="RendezvousReady is told")
    assert (starting["status"], starting["reason"]) == ("False", "EtcdStarting")


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
