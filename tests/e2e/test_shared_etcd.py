"""An etcd with TLS and users on real pods, which all jobs share."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.drivers import ClusterDriver, KubeError
from hack.drivers.install import NAMESPACE
from hack.support import eventually
from tests.contract.certificates import Pki
from tests.e2e.jobs import COUNTING, Job
from tests.e2e.release import Release

NewJob = Callable[..., Job]

pytestmark = pytest.mark.alone  # other jobs would use the shared etcd

HOST = "shared-etcd.default.svc"
ENDPOINT = f"https://{HOST}:2379"
FLAGS = ("--endpoints=https://localhost:2379", "--cacert=/certificates/ca.crt")
ROOT_PASSWORD = "the administrator's"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    pki = Pki(tmp_path / "pki")
    pki.sign("server", "/O=etcd", f"subjectAltName=DNS:{HOST},DNS:localhost")
    return pki


def secret(name: str, **keys: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": keys}


def etcd_objects(image: str, pki: Pki) -> list[dict[str, Any]]:
    files = {name: Path(path).read_text() for name, path in (("ca.crt", pki.ca), *_server_files(pki))}
    command = [
        *("etcd", "--data-dir=/data/etcd", "--listen-client-urls=https://0.0.0.0:2379", "--log-level=warn"),
        *(f"--advertise-client-urls={ENDPOINT}", "--cert-file=/certificates/tls.crt"),
        *("--key-file=/certificates/tls.key", "--listen-metrics-urls=http://0.0.0.0:2381"),
    ]
    container = {
        "name": "etcd",
        "image": image,
        "command": command,
        "readinessProbe": {"httpGet": {"path": "/health", "port": 2381}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "certificates", "mountPath": "/certificates"},
        ],
    }
    volumes = [
        {"name": "data", "emptyDir": {}},
        {"name": "certificates", "secret": {"secretName": "shared-etcd-server"}},
    ]
    metadata = {"name": "shared-etcd", "labels": {"app": "shared-etcd"}}
    pod_spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    ports = {"selector": {"app": "shared-etcd"}, "ports": [{"port": 2379}]}
    return [
        secret("shared-etcd-server", **files),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shared-etcd"}, "spec": ports},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec},
    ]


def _server_files(pki: Pki) -> list[tuple[str, str]]:
    return [("tls.crt", pki.certificate("server")), ("tls.key", pki.key("server"))]


EtcdCtl = Callable[..., str]


@pytest.fixture
def etcdctl(cluster: ClusterDriver, pki: Pki) -> Iterator[EtcdCtl]:
    """A separate etcd with TLS and authentication: runs etcdctl there as that user."""

    def run(*words: str, user: str = f"root:{ROOT_PASSWORD}") -> str:
        as_user = [f"--user={user}"] if user else []
        try:
            return cluster.kubectl.run("exec", "shared-etcd", "--", "etcdctl", *FLAGS, *as_user, *words)
        except KubeError as error:
            return str(error)

    image = cluster.etcd_image or "registry.k8s.io/etcd:3.6.11-0"
    cluster.kubectl.apply(yaml.safe_dump_all(etcd_objects(image, pki)))
    cluster.kubectl.wait("pod/shared-etcd", "condition=Ready")
    for words in (
        ("user", "add", f"root:{ROOT_PASSWORD}"),
        ("user", "grant-role", "root", "root"),
        ("auth", "enable"),
    ):
        run(*words, user="")
    yield run
    for kind, name in (("pod", "shared-etcd"), ("service", "shared-etcd"), ("secret", "shared-etcd-server")):
        cluster.kubectl.delete(kind, name)


@pytest.fixture
def shared(cluster: ClusterDriver, release: Release, etcdctl: EtcdCtl, pki: Pki) -> Iterator[EtcdCtl]:
    """All jobs use that etcd."""
    keys = {"username": "root", "password": ROOT_PASSWORD, "ca.crt": Path(pki.ca).read_text()}
    cluster.kubectl.apply(yaml.safe_dump(secret("shared-etcd", **keys)), NAMESPACE)
    release.upgrade(rendezvous={"endpoint": ENDPOINT, "secretName": "shared-etcd"})
    yield etcdctl
    cluster.kubectl.run("delete", "secret", "shared-etcd", "--namespace", NAMESPACE)


@pytest.mark.timeout(600)
def test_jobs_share_an_etcd_in_which_each_run_has_a_user_of_its_own(
    cluster: ClusterDriver, new_job: NewJob, shared: EtcdCtl
) -> None:
    mine = new_job("shared-mine", replicas=2, command=COUNTING)
    other = new_job("shared-other", replicas=1, least=1, command=COUNTING)
    mine.trains(2)
    other.trains(1)
    assert mine.status["rendezvous"]["endpoint"] == ENDPOINT
    assert not [item for item in cluster.kubectl.items("statefulsets") if item["metadata"]["name"].endswith("-etcd")]
    (own,) = [
        item["data"] for item in cluster.kubectl.items("secrets") if item["metadata"]["name"].startswith("shared-mine-")
    ]
    login = ":".join(base64.b64decode(own[key]).decode() for key in ("username", "password"))
    run, foreign = (job.status["rendezvous"]["id"] for job in (mine, other))
    assert "members/" in shared("get", "--prefix", f"/elasticjob/{run}/", "--keys-only", user=login)
    assert "permission denied" in shared("get", "--prefix", f"/elasticjob/{foreign}/", user=login)

    round_number = mine.status["round"]
    cluster.kubectl.delete("pod", mine.worker(1), wait=False)
    eventually(lambda: mine.status["round"] > round_number, 60, 0.3, "a new plan")
    mine.trains(2)
    assert mine.restarts == 0

    user = f"elasticjob-{run}"
    assert user in shared("user", "list")
    mine.suspend(True)
    eventually(lambda: mine.is_true("Suspended"), 90, 0.3, "Suspended")
    eventually(lambda: user not in shared("user", "list") + shared("role", "list"), 30, 0.5, "the user is removed")
    other.trains(1)
