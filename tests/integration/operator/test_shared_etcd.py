"""An etcd with TLS and users: one that all jobs share, and one that a job names. Real API server, operator and etcd."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticjob_runtime.etcd import Denied, EtcdClient, Get, KeyRange, connect

from hack.support import eventually
from tests.contract.certificates import Pki
from tests.contract.etcd_servers import ROOT_PASSWORD, EtcdServer, enable_users, require_etcd
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator

SHARED, MINE = "shared-etcd", "mine"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[EtcdServer]:
    """`jane` may read and write the keys of all jobs, `joe` none of them."""
    folder = tmp_path_factory.mktemp("guarded")
    server = EtcdServer(require_etcd("3.6"), folder, pki=pki, flags=["--bcrypt-cost", "4"]).start()
    enable_users(server, {"jane": ("secret", "/elasticjob/"), "joe": ("secret", "/other/")})
    yield server
    server.stop()


@dataclasses.dataclass
class SecretStore:
    ns: Namespace
    ca: str

    def put(self, name: str, **keys: str) -> None:
        self.ns.delete("secrets", name)
        self.ns.create("secrets", {"metadata": {"name": name}, "stringData": {"ca.crt": self.ca, **keys}})

    def read(self, name: str) -> dict[str, str]:
        data = (self.ns.get("secrets", name) or {}).get("data") or {}
        return {key: base64.b64decode(text).decode() for key, text in data.items()}


@pytest.fixture
def secrets(ns: Namespace, pki: Pki) -> SecretStore:
    return SecretStore(ns, Path(pki.ca).read_text(encoding="utf-8"))


@pytest.fixture
def start_shared(
    ns: Namespace, secrets: SecretStore, guarded: EtcdServer, start_operator: Callable[..., Operator]
) -> Callable[..., Operator]:
    """An operator whose administrator named the shared etcd, and the Secret for it."""

    def start(endpoint: str = guarded.url, **keys: str) -> Operator:
        secrets.put(SHARED, **(keys or {"username": "root", "password": ROOT_PASSWORD}))
        return start_operator(
            ELASTICJOB_RENDEZVOUS_ENDPOINT=endpoint, ELASTICJOB_RENDEZVOUS_SECRET=f"{ns.name}/{SHARED}"
        )

    return start


@pytest.fixture
def root(guarded: EtcdServer, pki: Pki) -> Iterator[EtcdClient]:
    client = connect(guarded.url, {"cacert": pki.ca, "user": "root", "password": ROOT_PASSWORD})
    yield client
    client.close()


def users_of(server: EtcdServer, ns: Namespace, job: str = "digits") -> set[str]:
    """Users and roles of the job's runs."""
    uid, token = ns.job(job)["metadata"]["uid"], server._root_token()
    found = {item for kind in ("user", "role") for item in server.call(f"/v3/auth/{kind}/list", {}, token)[f"{kind}s"]}
    return {item for item in found if uid in item}


def secret_of(ns: Namespace) -> str:
    """The Secret that the worker pods mount."""
    volumes = [volume for pod in ns.workers().values() for volume in pod["spec"]["volumes"] if "secret" in volume]
    (name,) = {item["secret"]["secretName"] for item in volumes}
    return str(name)


def as_agent(server: EtcdServer, files: dict[str, str], folder: Path) -> EtcdClient:
    """As an agent that finds these files in its pod."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return connect(server.url, {"credentials": str(folder)})


def keys_of(ns: Namespace, job: str) -> str:
    return f"/elasticjob/{ns.status(job)['rendezvous']['id']}/"


def test_each_run_in_a_shared_etcd_has_a_user_who_can_access_only_its_keys(
    ns: Namespace,
    start_shared: Callable[..., Operator],
    secrets: SecretStore,
    submit: Callable[..., str],
    guarded: EtcdServer,
    root: EtcdClient,
    tmp_path: Path,
) -> None:
    start_shared()
    submit(endpoint="", replicas=1)
    eventually(ns.workers, what="a worker pod")
    mine = secret_of(ns)
    submit("other", endpoint="", replicas=1)
    eventually(lambda: len(ns.workers()) == 2, what="a worker pod of the other job")
    owner = (ns.get("secrets", mine) or {})["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("ElasticJob", ns.job("digits")["metadata"]["uid"])
    files = secrets.read(mine)
    assert set(files) == {"ca.crt", "username", "password"}
    assert users_of(guarded, ns) == {files["username"]}
    assert ROOT_PASSWORD not in str(ns.workers())

    agent = as_agent(guarded, files, tmp_path / "agent")
    assert agent.get(f"{keys_of(ns, 'digits')}spec")
    agent.put(f"{keys_of(ns, 'digits')}members/a", "{}")
    with pytest.raises(Denied, match="permission denied"):
        agent.get(f"{keys_of(ns, 'other')}spec")
    with pytest.raises(Denied, match="permission denied"):
        agent.put(f"{keys_of(ns, 'other')}outcome", "{}")
    agent.close()

    keys = KeyRange.prefix(keys_of(ns, "digits"))
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": True}})
    eventually(lambda: not users_of(guarded, ns), what="user and role are removed when the run is over")
    eventually(lambda: not ns.get("secrets", mine), what="its Secret, too")
    eventually(lambda: not list(_keys(root, keys)), what="and its keys")
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": False}})
    eventually(lambda: "digits-worker-0" in ns.workers(), what="a worker pod of the next run")
    assert users_of(guarded, ns) == {f"{files['username'][:-1]}2"}


def _keys(client: EtcdClient, keys: KeyRange) -> list[str]:
    return [kv.key for kv in client.range(Get(keys, keys_only=True)).kvs]


def test_the_user_of_a_deleted_job_is_removed(
    ns: Namespace, start_shared: Callable[..., Operator], submit: Callable[..., str], guarded: EtcdServer
) -> None:
    start_shared()
    submit(endpoint="", replicas=1)
    eventually(ns.workers, what="a worker pod")
    (user,) = users_of(guarded, ns)
    ns.delete("elasticjobs", "digits")
    token = guarded._root_token()
    eventually(lambda: user not in guarded.call("/v3/auth/user/list", {}, token)["users"], what="no user", timeout=60)


def bad_condition(ns: Namespace, reason: str) -> str:
    """The message of RendezvousReady, once it has that reason and there is a warning Event with it."""
    eventually(lambda: ns.condition("digits", "RendezvousReady").get("reason") == reason, what=reason, timeout=60)
    eventually(
        lambda: [event for event in ns.events("digits") if (event["type"], event["reason"]) == ("Warning", reason)],
        what=f"an Event {reason}",
    )
    assert not ns.workers(), "no worker pod fails with these credentials"
    return str(ns.condition("digits", "RendezvousReady")["message"])


def test_each_fault_of_a_jobs_own_credentials_is_named_and_can_be_mended(
    ns: Namespace,
    operator: Operator,
    submit: Callable[..., str],
    secrets: SecretStore,
    guarded: EtcdServer,
    tmp_path: Path,
) -> None:
    submit(replicas=1, spec={"rendezvous": {"type": "External", "endpoint": guarded.url, "secretName": MINE}})
    assert f"Secret {ns.name}/{MINE} does not exist: create it" in bad_condition(ns, "EtcdCredentialsUnusable")
    assert ns.condition("digits", "Running")["reason"] == "WaitingForEtcd"
    secrets.put(MINE, username="jane")
    eventually(lambda: "username without password: add it" in _message(ns), what="the missing key", timeout=60)
    secrets.put(MINE, username="jane", password="guessed")
    message = bad_condition(ns, "EtcdDenied")
    assert f"authentication failed (HTTP 400). Check username and password in Secret {ns.name}/{MINE}" in message
    assert "guessed" not in message
    secrets.put(MINE, username="joe", password="secret")
    eventually(lambda: "readwrite --prefix=true /elasticjob/" in _message(ns), what="missing rights", timeout=60)
    foreign = Path(Pki(tmp_path / "foreign").ca).read_text(encoding="utf-8")
    secrets.put(MINE, username="jane", password="secret", **{"ca.crt": foreign})
    assert f"into ca.crt of Secret {ns.name}/{MINE}" in bad_condition(ns, "EtcdUntrusted")
    secrets.put(MINE, username="jane", password="secret")
    eventually(ns.workers, what="a worker pod", timeout=60)
    assert secret_of(ns) == MINE
    eventually(lambda: ns.is_true("digits", "RendezvousReady"), what="RendezvousReady")
    assert (operator.returncode, operator.probe("/healthz")) == (None, 200)
    assert "guessed" not in operator.log_text()


def _message(ns: Namespace) -> str:
    return str(ns.condition("digits", "RendezvousReady").get("message", ""))


def test_shared_credentials_go_to_no_endpoint_that_a_job_names(
    ns: Namespace,
    start_shared: Callable[..., Operator],
    submit: Callable[..., str],
    guarded: EtcdServer,
) -> None:
    """Neither for the address of a server that the user controls, nor by the name of the Secret."""
    start_shared()
    # The same server under another name: it would accept the credentials, if they were sent.
    elsewhere = f"https://localhost:{guarded.port}"
    submit("named", spec=_rendezvous(endpoint=elsewhere), replicas=1)
    eventually(lambda: ns.condition("named", "RendezvousReady").get("reason") == "EtcdUntrusted", what="no CA of ours")
    submit("stolen", spec=_rendezvous(endpoint=elsewhere, secretName=SHARED), replicas=1)
    eventually(lambda: ns.condition("stolen", "Accepted").get("reason") == "SecretNotAllowed", what="SecretNotAllowed")
    assert not [pod for pod in ns.workers() if pod.startswith("stolen")]


def _rendezvous(**fields: str) -> dict[str, Any]:
    return {"rendezvous": {"type": "External", **fields}}
