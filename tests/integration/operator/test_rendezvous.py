"""etcd that is away, comes back, or comes back empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Gate, Operator, free_port
from tests.integration.operator.rendezvous import Agents


@pytest.fixture
def gate(endpoint: str) -> Iterator[Gate]:
    """A way to etcd that is shut."""
    host, _, port = endpoint.partition(":")
    gate = Gate(host, int(port))
    yield gate
    gate.shut()


def test_an_unreachable_etcd_is_shown_with_address_and_error(
    ns: Namespace, operator: Operator, submit: Callable[..., str], gate: Gate, agents_of: Callable[..., Agents]
) -> None:
    submit(endpoint=f"127.0.0.1:{gate.port}")
    eventually(
        lambda: ns.condition("digits", "RendezvousReady").get("reason") == "EtcdUnreachable", what="the condition"
    )
    words = ns.condition("digits", "RendezvousReady")["message"]
    assert f"127.0.0.1:{gate.port}" in words
    assert "refused" in words
    assert len(ns.workers()) == 2, "pods do not wait for etcd"
    assert operator.probe("/healthz") == 200, "no crash loop"
    gate.open()
    eventually(lambda: ns.is_true("digits", "RendezvousReady"), what="it answers")
    eventually(lambda: agents_of("digits").spec(), what="the spec is written")

    gate.shut()
    eventually(lambda: ns.condition("digits", "RendezvousReady")["status"] == "False", what="away again", timeout=60)
    ns.scale("digits", 1)
    eventually(lambda: len(ns.workers()) == 1, what="shrinking does not wait for etcd")
    gate.open()
    eventually(lambda: ns.is_true("digits", "RendezvousReady"), what="back again")
    eventually(lambda: (spec := agents_of("digits").spec()) and spec.wanted == 1, what="what changed meanwhile is told")


def test_a_spec_that_etcd_lost_is_written_again(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=2)
    before = eventually(agents.spec, what="spec")
    agents.lose_spec()
    assert eventually(agents.spec, what="spec again") == before
    assert ns.is_true("digits", "Running")


def test_an_endpoint_that_is_not_an_etcd_is_shown(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    submit(endpoint=f"127.0.0.1:{operator.probe_port}")
    eventually(lambda: ns.condition("digits", "RendezvousReady").get("reason") == "EtcdDenied", what="the condition")
    assert f"127.0.0.1:{operator.probe_port}" in ns.condition("digits", "RendezvousReady")["message"]


def test_the_default_endpoint_serves_jobs_without_one(
    ns: Namespace, start_operator: Callable[..., Operator], submit: Callable[..., str], endpoint: str
) -> None:
    operator = start_operator(ELASTICJOB_RENDEZVOUS_ENDPOINT=endpoint)
    submit(endpoint="")
    eventually(lambda: ns.is_true("digits", "RendezvousReady"), what="RendezvousReady")
    assert not ns.all("statefulsets")
    # Another default after an upgrade does not move a job that runs.
    operator.stop()
    start_operator(ELASTICJOB_RENDEZVOUS_ENDPOINT=f"127.0.0.1:{free_port()}")
    ns.scale("digits", 3)
    eventually(lambda: len(ns.workers()) == 3, what="a third pod")
    environment = {
        each["name"]: each.get("value") for each in ns.workers()["digits-worker-2"]["spec"]["containers"][0]["env"]
    }
    assert environment["PET_RDZV_ENDPOINT"] == endpoint
    assert ns.is_true("digits", "RendezvousReady")


def test_a_c10d_job_meets_at_worker_0_without_an_etcd(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(replicas=3, spec={"rendezvous": {"backend": "c10d"}})
    eventually(lambda: len(ns.workers()) == 3, what="workers")
    assert set(ns.all("services")) == {"digits"}
    assert not ns.all("statefulsets")
    environment = {
        each["name"]: each.get("value") for each in ns.workers()["digits-worker-1"]["spec"]["containers"][0]["env"]
    }
    assert environment["PET_RDZV_ENDPOINT"] == f"digits-worker-0.digits.{ns.name}.svc:29400"
    assert environment["PET_RDZV_CONF"] == "is_host=false"
    for pod in ns.workers():
        ns.run(pod)
    eventually(lambda: ns.is_true("digits", "Running") and ns.is_true("digits", "RendezvousReady"), what="Running")
    ns.scale("digits", 2)
    eventually(lambda: set(ns.workers()) == {"digits-worker-0", "digits-worker-1"}, what="two workers")
    for pod in ns.workers():
        ns.end(pod, 0, at=rfc3339())
    eventually(lambda: ns.is_true("digits", "Succeeded"), what="Succeeded")
