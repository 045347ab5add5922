"""Pods that go: by hand, by failing, with their node, or that cannot come at all."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Json, Namespace, is_worker
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents
from tests.integration.operator.shared import operator

__all__ = ["operator"]


@pytest.fixture
def nodes(ns: Namespace) -> Iterator[tuple[str, str]]:
    """Two nodes that are Ready."""
    names = (f"node-{uuid.uuid4().hex[:6]}", f"node-{uuid.uuid4().hex[:6]}")
    for name in names:
        ns.add_node(name)
    yield names
    for name in names:
        ns.remove_node(name)


def successor(ns: Namespace, pod: str, uid: str) -> Json:
    """The pod of that name, once it is another one."""

    def found() -> Json | None:
        known = ns.get("pods", pod)
        return known if known and known["metadata"]["uid"] != uid else None

    return eventually(found, what=f"a successor of {pod}") or {}


def uid_of(ns: Namespace, pod: str) -> str:
    found = ns.get("pods", pod)
    assert found is not None
    return str(found["metadata"]["uid"])


def test_a_pod_on_a_dead_node_is_deleted_by_force_and_replaced(
    ns: Namespace, nodes: tuple[str, str], training: Callable[..., Agents]
) -> None:
    good, bad = nodes
    agents = training(replicas=2, node=good)
    ns.scale("digits", 3)
    eventually(lambda: "digits-worker-2" in ns.workers(), what="a third pod")
    ns.run("digits-worker-2", bad)
    name, before = ns.pod_name("digits-worker-2"), uid_of(ns, "digits-worker-2")
    agents.register(name)
    ns.set_node(bad, ready=None, since=rfc3339())
    # No kubelet will end it: an ordinary delete would leave it Terminating.
    successor(ns, "digits-worker-2", before)
    eventually(lambda: agents.members() == [], what="the lost member's key is gone")
    assert ns.status("digits")["restarts"]["total"] == 0, "node loss is free"

    def told() -> list[tuple[str, str]]:
        return sorted((event["reason"], event["message"]) for event in ns.events("digits") if bad in event["message"])

    eventually(lambda: len(told()) >= 2, what="Events, within a second of the status")
    assert told() == [
        ("WorkerDeleted", f"Deleted digits-worker-2: node {bad} is not ready"),
        (
            "WorkerLost",
            f"Scaling up to 3 worker pods; training: 2. Lost {name} (node {bad} is not ready); this does "
            "not count towards maxRestarts.",
        ),
    ]


def test_a_quota_is_shown_and_scaling_up_continues_once_it_is_raised(
    ns: Namespace, training: Callable[..., Agents]
) -> None:
    training(replicas=2)
    ns.create("resourcequotas", {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}})
    # No quota controller runs here, which would count the pods.
    ns.patch("resourcequotas", "small", {"status": {"hard": {"pods": "2"}, "used": {"pods": "2"}}}, "status")
    ns.scale("digits", 3)
    eventually(lambda: "exceeded quota" in ns.condition("digits", "Running")["message"], what="the server's words")
    assert ns.is_true("digits", "Running"), "the two go on"
    resizing = ns.condition("digits", "Resizing")
    assert (resizing["status"], resizing["reason"]) == ("True", "PodRejected")
    assert resizing["message"].startswith(
        "Scaling up to 3 worker pods; training: 2. The API server rejects Pod of ElasticJob digits, retrying: "
    )

    def told(reason: str) -> list[str]:
        return [event["message"] for event in ns.events("digits") if event["reason"] == reason]

    eventually(lambda: len(told("PodRejected")) == 1, what="one Event")
    assert told("WorkerCreated") == ["Created digits-worker-0, digits-worker-1."], "what was refused did not happen"
    ns.scale("digits", 2)
    eventually(lambda: "quota" not in ns.condition("digits", "Running")["message"], what="nothing is refused any more")
    ns.scale("digits", 3)
    eventually(lambda: "exceeded quota" in ns.condition("digits", "Running")["message"], what="refused again")
    ns.patch("resourcequotas", "small", {"spec": {"hard": {"pods": "3"}}})
    ns.patch("resourcequotas", "small", {"status": {"hard": {"pods": "3"}, "used": {"pods": "2"}}}, "status")
    eventually(lambda: len(ns.workers()) == 3, 60, what="the third pod")
    eventually(lambda: "quota" not in ns.condition("digits", "Running")["message"], what="it is forgotten")
    created = ["Created digits-worker-0, digits-worker-1.", "Created digits-worker-2."]
    eventually(lambda: sorted(told("WorkerCreated")) == created, what="told when it came")
    assert ns.status("digits")["restarts"]["total"] == 0


def test_a_job_starts_once_the_orphans_of_its_predecessor_are_deleted(
    ns: Namespace, nodes: tuple[str, str], operator: Operator, submit: Callable[..., str]
) -> None:
    """Its worker pods never meet the etcd of the deleted job, and one command deletes all that holds it."""
    assert operator
    submit(endpoint="", replicas=1)
    (host,) = eventually(ns.workers, what="the worker pod")
    ns.run(host, nodes[0])
    old = ns.pod_name(host)
    ns.delete("elasticjobs", "digits", propagationPolicy="Orphan")
    eventually(lambda: ns.get("elasticjobs", "digits") is None, 60, what="it is deleted")
    time.sleep(1.0)  # times of creation have seconds
    submit(endpoint="", replicas=1)

    def command() -> list[str]:
        return str(ns.condition("digits", "Running").get("message", "")).partition("kubectl delete ")[2].split()

    *left, _, namespace = eventually(command, what="the command")
    assert (namespace, len(left)) == (ns.name, 5), left
    assert {item.partition("/")[2] for item in left} > {"digits", "digits-etcd", old}
    assert ns.condition("digits", "RendezvousReady")["reason"] == "NameInUse"
    while left:
        kind, _, name = left.pop().partition("/")
        ns.delete(f"{kind}s", name)
        if left:
            named = [item for item in left if not item.startswith("secret/")]  # it goes with its StatefulSet
            eventually(lambda named=named: command()[:-2] == named, what="what is left is named")  # type: ignore[misc]
            assert {pod["metadata"]["name"] for pod in ns.pods() if is_worker(pod)} == {old}

    def new() -> list[Json]:
        return [pod for pod in ns.pods() if is_worker(pod) and pod["metadata"]["name"] != old]

    eventually(new, what="its own pod")
    (etcd,) = ns.all("statefulsets").values()
    assert etcd["metadata"]["ownerReferences"][0]["uid"] == ns.job("digits")["metadata"]["uid"]
    assert ns.status("digits")["restarts"]["total"] == 0


@pytest.mark.parametrize("label", ["elasticjob.dev/job-name", "elasticjob.dev/worker-index"])
def test_no_two_pods_of_an_index_train_when_a_label_is_removed_by_hand(
    ns: Namespace, training: Callable[..., Agents], label: str
) -> None:
    training(replicas=2)
    before = {pod["metadata"]["uid"] for pod in ns.pods()}
    ns.patch("pods", "digits-worker-1", {"metadata": {"labels": {label: None}}})
    if label == "elasticjob.dev/job-name":
        eventually(lambda: label in ns.workers()["digits-worker-1"]["metadata"]["labels"], what="the pod is adopted")
    ns.scale("digits", 3)
    eventually(lambda: len(ns.pods()) > 2, what="the operator has looked")
    assert before < {pod["metadata"]["uid"] for pod in ns.pods()}
    assert sorted(pod["spec"]["hostname"] for pod in ns.pods()) == [f"digits-worker-{index}" for index in range(3)]
