"""The NetworkPolicies of a job, as the API server has them.

No network of the tests implements NetworkPolicy: `tests.network_policies` judges what one would enforce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.support import eventually
from tests.integration.chart import of_kind, rendered
from tests.integration.operator.kube import Json, Kube, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.shared import running
from tests.network_policies import Endpoint, may_connect

VARIABLE = "ELASTICJOB_NETWORK_POLICIES"


@pytest.fixture(scope="module")
def deployment() -> Json:
    """The operator's, with the chart's defaults."""
    found: Json = of_kind(rendered(), "Deployment")[0]
    return found


@pytest.fixture(scope="module")
def operator(
    kube: Kube, control_plane: Path, deployment: Json, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    assert kube  # with the CRD
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    (value,) = (variable["value"] for variable in variables if variable["name"] == VARIABLE)
    with running(control_plane, tmp_path_factory.mktemp("operator"), **{VARIABLE: value}) as operator:
        yield operator


def policies(ns: Namespace) -> dict[str, Json]:
    return ns.all("networkpolicies")


def started(ns: Namespace) -> Any:
    return len(ns.workers()) == 2 and ns.all("statefulsets")


def test_a_job_with_the_charts_defaults_is_closed_to_other_tenants(
    ns: Namespace, operator: Operator, submit: Callable[..., str], deployment: Json
) -> None:
    submit(endpoint="")
    eventually(lambda: started(ns), what="worker pods and etcd")
    own = policies(ns)
    assert set(own) == {"digits-worker", "digits-etcd"}
    workers = [Endpoint.of(pod) for pod in ns.workers().values()]
    etcd = Endpoint.of(ns.all("statefulsets")["digits-etcd"]["spec"]["template"], ns.name)
    operators = Endpoint.of(deployment["spec"]["template"], "system")
    stranger = Endpoint.of({"metadata": {"labels": dict(workers[0].labels)}}, "elsewhere")
    neighbor = Endpoint.of({"metadata": {"labels": {"app": "notebook"}}}, ns.name)

    def reached(source: Endpoint, target: Endpoint) -> set[int]:
        ports = (2379, 2380, 2381, 9100, 29500, 40000)
        return {port for port in ports if may_connect(own.values(), source, target, port)}

    assert reached(workers[0], workers[1]) == {2379, 2380, 2381, 9100, 29500, 40000}
    assert reached(workers[0], etcd) == reached(operators, etcd) == {2379}
    assert reached(etcd, etcd) == {2380}
    for source in (stranger, neighbor):
        assert (reached(source, etcd), reached(source, workers[0])) == (set(), set())
    assert reached(operators, workers[0]) == set()
    assert f"[{ns.name}/digits] PatchObject" not in operator.log_text(), "the API server stores them as written"


def test_policies_are_created_before_pods(ns: Namespace, operator: Operator, submit: Callable[..., str]) -> None:
    assert operator
    submit(endpoint="")
    eventually(lambda: started(ns), what="worker pods and etcd")

    def versions(*plurals: str) -> list[int]:
        return [int(item["metadata"]["resourceVersion"]) for plural in plurals for item in ns.all(plural).values()]

    assert max(versions("networkpolicies")) < min(versions("pods", "statefulsets"))


def test_policies_that_are_changed_or_deleted_are_restored(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(endpoint="")
    eventually(lambda: started(ns), what="worker pods and etcd")
    before = {name: policy["spec"] for name, policy in policies(ns).items()}
    ns.patch("networkpolicies", "digits-etcd", {"spec": {"ingress": [{}]}})
    eventually(lambda: policies(ns)["digits-etcd"]["spec"] == before["digits-etcd"], what="no rule more")
    ns.patch("networkpolicies", "digits-worker", {"spec": {"podSelector": {"matchLabels": {"app": "none"}}}})
    eventually(lambda: policies(ns)["digits-worker"]["spec"] == before["digits-worker"], what="the same selector")
    ns.delete("networkpolicies", "digits-etcd")
    eventually(lambda: {name: policy["spec"] for name, policy in policies(ns).items()} == before, what="it is back")


def test_a_users_policy_of_the_same_name_is_left_alone_and_named(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    """The job waits: it would run unprotected."""
    assert operator
    theirs = {"metadata": {"name": "digits-worker"}, "spec": {"podSelector": {}}}
    ns.create("networkpolicies", {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", **theirs})
    submit()
    eventually(lambda: ns.condition("digits", "Running").get("reason") == "ObjectRejected", what="status says so")
    assert (
        "NetworkPolicy digits-worker exists and does not belong to this job"
        in ns.condition("digits", "Running")["message"]
    )
    assert not ns.workers()
    assert policies(ns)["digits-worker"]["spec"]["podSelector"] == {}
    ns.delete("networkpolicies", "digits-worker")
    eventually(lambda: len(ns.workers()) == 2, timeout=30, what="the job starts")
