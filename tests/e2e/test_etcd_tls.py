"""Who may reach a job's own etcd, and what happens to running jobs when that changes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import Job

NewJob = Callable[..., Job]

CERTIFICATES = "/etc/elasticjob/etcd"
READ_ALL = """
    import http.client, json, os, ssl, sys
    host, scheme, certificate = sys.argv[1:]
    if scheme == "http":
        connection = http.client.HTTPConnection(host, 2379, timeout=10)
    else:
        context = ssl.create_default_context(cafile="/etc/elasticjob/etcd/ca.crt")
        if certificate:
            context.load_cert_chain(f"{certificate}/worker.crt", f"{certificate}/worker.key")
        connection = http.client.HTTPSConnection(host, 2379, timeout=10, context=context)
    try:
        # All keys.
        connection.request("POST", "/v3/kv/range", json.dumps({"key": "AA==", "range_end": "AA==", "keys_only": True}))
        print("status", connection.getresponse().status)
    except OSError as error:
        print("refused:", error)
"""
"""Run in a worker pod: reads every key of an etcd."""


def read_all(cluster: ClusterDriver, pod: str, host: str, scheme: str = "https", certificate: str = "") -> str:
    script = textwrap.dedent(READ_ALL)
    return cluster.kubectl.run("exec", pod, "--", "python3", "-c", script, host, scheme, certificate).strip()


def endpoint_of(job: Job) -> str:
    return str(job.status["rendezvous"]["endpoint"])


def secrets_of(cluster: ClusterDriver, job: Job) -> list[str]:
    names = [secret["metadata"]["name"] for secret in cluster.kubectl.items("secrets")]
    return [name for name in names if name.startswith(f"{job.name}-etcd-")]


def test_only_a_jobs_own_worker_pods_can_read_its_etcd(cluster: ClusterDriver, new_job: NewJob) -> None:
    mine, other = new_job("tls-mine", replicas=2), new_job("tls-other", replicas=1, least=1)
    mine.trains(2)
    other.trains(1)
    assert endpoint_of(mine) == "https://tls-mine-etcd.default.svc:2379"
    host = "tls-mine-etcd.default.svc"
    assert read_all(cluster, mine.worker(0), host, certificate=CERTIFICATES) == "status 200"
    assert "refused" in read_all(cluster, other.worker(0), host), "without a certificate"
    assert "refused" in read_all(cluster, other.worker(0), host, certificate=CERTIFICATES), "with another job's"
    assert "status 200" not in read_all(cluster, other.worker(0), host, scheme="http"), "without TLS"
    assert mine.restarts == 0


def test_certificates_are_deleted_when_the_run_is_over_and_a_new_run_gets_new_ones(
    cluster: ClusterDriver, new_job: NewJob
) -> None:
    job = new_job("tls-runs", replicas=1, least=1)
    job.trains(1)
    (first,) = secrets_of(cluster, job)
    job.suspend(True)
    eventually(lambda: job.is_true("Suspended"), 90, 0.3, "Suspended")
    eventually(lambda: not secrets_of(cluster, job), 30, 0.3, "the certificates are deleted")
    job.suspend(False)
    job.trains(1)
    (second,) = secrets_of(cluster, job)
    assert second != first
