"""Who may reach a job's own etcd, and what happens to running jobs when that changes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from hack.drivers import ClusterDriver
from hack.drivers.install import NAMESPACE, RELEASE
from hack.support import eventually
from tests.e2e.jobs import Job
from tests.e2e.release import Release

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


def etcd_of(cluster: ClusterDriver, job: Job) -> dict[str, Any]:
    return cluster.kubectl.get("statefulset", f"{job.name}-etcd")


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


@pytest.mark.nightly
@pytest.mark.alone  # the operator restarts
def test_a_restarted_operator_reaches_the_etcds_of_running_jobs(
    cluster: ClusterDriver, new_job: NewJob, release: Release
) -> None:
    job = new_job("tls-again", replicas=2)
    job.trains(2)
    before, old = job.snapshot, release.operators
    cluster.kubectl.run("delete", "pod", *old, "--namespace", NAMESPACE, "--force", "--grace-period=0")
    eventually(lambda: release.operators and not set(old) & set(release.operators), 60, 0.3, "another operator")
    job.scale(3)
    job.trains(3)
    assert before.pods <= job.snapshot.pods
    assert job.restarts == 0


@pytest.mark.nightly
@pytest.mark.alone  # the operator restarts
@pytest.mark.timeout(600)
def test_running_jobs_keep_or_lack_tls_when_the_operator_is_upgraded(
    cluster: ClusterDriver, new_job: NewJob, release: Release
) -> None:
    secure = new_job("tls-on", replicas=1, least=1)
    secure.trains(1)
    before = secure.snapshot, etcd_of(cluster, secure)["metadata"]["generation"]

    release.upgrade(rendezvous={"tls": False})
    plain = new_job("tls-off", replicas=1, least=1)
    plain.trains(1)
    assert endpoint_of(plain) == "tls-off-etcd.default.svc:2379"
    assert not secrets_of(cluster, plain)
    secure.trains(1)
    assert (secure.snapshot, etcd_of(cluster, secure)["metadata"]["generation"]) == before

    before_plain = plain.snapshot, etcd_of(cluster, plain)["metadata"]["generation"]
    release.restore()
    plain.scale(2)
    plain.trains(2)
    assert before_plain[0].pods <= plain.snapshot.pods
    assert etcd_of(cluster, plain)["metadata"]["generation"] == before_plain[1]
    secure.scale(2)
    secure.trains(2)
    assert (plain.restarts, secure.restarts) == (0, 0)


@pytest.mark.nightly
@pytest.mark.alone  # the operator restarts
def test_a_replaced_certificate_authority_stops_no_training_and_a_new_run_uses_it(
    cluster: ClusterDriver, new_job: NewJob, release: Release
) -> None:
    job = new_job("tls-replaced", replicas=2)
    job.trains(2)
    pods, old = job.snapshot.pods, release.operators
    cluster.kubectl.delete("secret", f"{RELEASE}-ca", namespace=NAMESPACE)
    cluster.kubectl.run("delete", "pod", *old, "--namespace", NAMESPACE, "--force", "--grace-period=0")
    eventually(lambda: job.condition("RendezvousReady").get("reason") == "EtcdUntrusted", 90, 0.3, "EtcdUntrusted")
    assert "suspend the job and resume it" in job.condition("RendezvousReady")["message"]
    eventually(lambda: any("each other's certificates" in each for each in job.events), 30, 0.3, "its Event")
    assert job.snapshot.pods == pods
    job.suspend(True)
    eventually(lambda: job.is_true("Suspended"), 90, 0.3, "Suspended")
    job.suspend(False)
    job.trains(2)
    assert job.condition("RendezvousReady")["reason"] == "EtcdReady"
