"""The operator's certificate authority and the certificates of jobs' etcds, on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.support import eventually
from tests.integration.operator.faulty import Answer, FaultyServer, Request
from tests.integration.operator.kube import Namespace, is_worker
from tests.integration.operator.process import Operator
from tests.integration.operator.test_waits import warn, warnings_of
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


def test_a_restarted_operator_makes_no_certificates_again(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    submit(endpoint="", replicas=1)
    eventually(ns.workers, what="a worker pod")
    before = secrets_of_jobs(ns), ns.all("secrets")[CA]["metadata"]["uid"]
    operator.kill()
    operator.restart()
    ns.scale("digits", 2)
    eventually(lambda: len(ns.workers()) == 2, what="another worker pod")
    assert (secrets_of_jobs(ns), ns.all("secrets")[CA]["metadata"]["uid"]) == before


def test_operators_that_start_together_share_one_certificate_authority(
    ns: Namespace, server: FaultyServer, tmp_path: Path, start_operator: Callable[..., Operator]
) -> None:
    """The second one finds none, and loses the race to create it."""
    first = start_operator()
    uid = ns.all("secrets")[CA]["metadata"]["uid"]
    reads = 0

    def not_there_at_first(request: Request) -> Answer | None:
        nonlocal reads
        if not request.path.endswith(f"/secrets/{CA}"):
            return None
        reads += 1
        return Answer(404, "NotFound") if reads == 1 else None

    server.fault = not_there_at_first
    second = start_operator(server.kubeconfig(tmp_path))
    assert reads == 2
    assert ns.all("secrets")[CA]["metadata"]["uid"] == uid
    assert [first.returncode, second.returncode] == [None, None]


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


def test_an_unusable_certificate_authority_stops_no_other_job(
    ns: Namespace, start_operator: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    ns.create("secrets", {"metadata": {"name": CA}, "stringData": {"tls.crt": "x", "tls.key": "y"}})
    operator = start_operator()
    submit("own", endpoint="", replicas=1)
    submit("shared", replicas=1)
    eventually(lambda: "shared-worker-0" in ns.workers(), what="a job with another etcd gets its pod")
    eventually(lambda: ns.condition("own", "Running").get("reason") == "ObjectRejected", what="ObjectRejected")
    message = ns.condition("own", "Running")["message"]
    assert f"Secret {ns.name}/{CA} with the operator's certificate authority cannot be used" in message
    ns.delete("secrets", CA)
    eventually(lambda: "own-worker-0" in ns.workers(), what="the operator creates one", timeout=60)
    assert operator.returncode is None


def test_a_deleted_secret_replaces_etcd_and_all_worker_pods_one_group_after_the_other(
    ns: Namespace, nodes: tuple[str, str], operator: Operator, submit: Callable[..., str]
) -> None:
    """The kubelet says that it is missing: the operator may not read it."""
    assert operator
    submit(endpoint="", replicas=2)
    eventually(lambda: len(ns.workers()) == 2, what="worker pods")
    first, second = sorted(ns.workers())
    ns.run(first, nodes[0])
    ns.bind(second, nodes[1])
    old = {ns.pod_name(first), ns.pod_name(second)}
    (secret,) = secrets_of_jobs(ns)
    etcd = ns.all("statefulsets")["digits-etcd"]["metadata"]["uid"]
    ns.delete("secrets", secret)
    warn(ns, "Pod", ns.pod_name(second), "FailedMount", f'MountVolume.SetUp failed: secret "{secret}" not found')
    eventually(lambda: secrets_of_jobs(ns), what="the Secret of the next run", timeout=60)
    (new,) = secrets_of_jobs(ns)
    assert new == secret.removesuffix("-1") + "-2"
    eventually(lambda: ns.all("statefulsets")["digits-etcd"]["metadata"]["uid"] != etcd, what="another etcd")
    workers = [pod for pod in ns.pods() if is_worker(pod)]
    assert {pod["metadata"]["name"] for pod in workers} == old, "none of the next run while one of the last is left"
    assert all("deletionTimestamp" in pod["metadata"] for pod in workers)
    for pod in sorted(old):
        ns.remove(pod)
    eventually(lambda: len(ns.workers()) == 2, what="worker pods of the next run")
    assert not old & {ns.pod_name(host) for host in ns.workers()}
    assert len(warnings_of(ns, "CertificatesDeleted")) == 1
    assert ns.status("digits")["restarts"]["total"] == 0
