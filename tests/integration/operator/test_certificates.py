"""The operator's certificate authority and the certificates of jobs' etcds, on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.support import eventually
from tests.integration.operator.faulty import Answer, FaultyServer, Request
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.test_workers import nodes

__all__ = ["nodes"]

CA = "elasticjob-ca"
FORBIDDEN = Answer(403, "Forbidden")


def secrets_of_jobs(ns: Namespace) -> dict[str, str]:
    """Name -> UID."""
    return {name: str(each["metadata"]["uid"]) for name, each in ns.all("secrets").items() if name != CA}


@pytest.fixture
def server(control_plane: Path) -> Iterator[FaultyServer]:
    with FaultyServer(control_plane) as server:
        yield server


def creates_a_secret(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/secrets")


def test_a_jobs_etcd_gets_certificates_that_are_deleted_with_it(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(endpoint="", replicas=1)
    eventually(ns.workers, what="a worker pod")
    ((name, secret),) = [(name, each) for name, each in ns.all("secrets").items() if name != CA]
    job = ns.job("digits")["metadata"]["uid"]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job
    assert secret["immutable"]
    volumes = ns.all("statefulsets")["digits-etcd"]["spec"]["template"]["spec"]["volumes"]
    assert [each["secret"]["secretName"] for each in volumes if "secret" in each] == [name]
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": True}})
    eventually(lambda: not secrets_of_jobs(ns), what="its certificates are deleted")


def test_without_the_right_to_create_secrets_nothing_is_created_and_the_job_says_why(
    ns: Namespace,
    server: FaultyServer,
    tmp_path: Path,
    start_operator: Callable[..., Operator],
    submit: Callable[..., str],
) -> None:
    """Never an etcd without TLS instead."""
    operator = start_operator(server.kubeconfig(tmp_path))
    server.fault = lambda request: FORBIDDEN if creates_a_secret(request) else None
    submit(endpoint="", replicas=1)
    eventually(lambda: ns.condition("digits", "Running").get("reason") == "ObjectRejected", what="ObjectRejected")
    assert not ns.workers()
    assert not ns.all("statefulsets")
    server.fault = lambda _: None
    eventually(ns.workers, what="a worker pod, once it may", timeout=60)
    assert operator.returncode is None
