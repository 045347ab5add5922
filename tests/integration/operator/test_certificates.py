"""The operator's certificate authority and the certificates of jobs' etcds, on a real API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hack.support import eventually
from tests.integration.operator.faulty import Answer, FaultyServer, Request
from tests.integration.operator.kube import Json, Namespace
from tests.integration.operator.process import Operator

FORBIDDEN = Answer(403, "Forbidden")


def creates_a_secret(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/secrets")


def test_a_jobs_etcd_gets_certificates_that_are_deleted_with_it(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(endpoint="", replicas=1)
    eventually(ns.workers, what="a worker pod")
    ((name, secret),) = secrets_of_jobs(ns)
    job = ns.job("digits")["metadata"]["uid"]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job
    assert secret["immutable"]
    volumes = ns.all("statefulsets")["digits-etcd"]["spec"]["template"]["spec"]["volumes"]
    assert [volume["secret"]["secretName"] for volume in volumes if "secret" in volume] == [name]
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": True}})
    eventually(lambda: not secrets_of_jobs(ns), what="its certificates are deleted")


def secrets_of_jobs(ns: Namespace) -> list[tuple[str, Json]]:
    return [(name, item) for name, item in ns.all("secrets").items() if name != "elasticjob-ca"]


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
