"""TLS, certificates and users in --rdzv-conf: training works with them, and a wrong one is named."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from elasticjob_runtime.torchrun.handler import SettingsError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from tests.contract.certificates import Pki
from tests.contract.etcd_servers import EtcdServer, enable_users, require_etcd
from tests.integration.runtime_torchrun.conftest import PATIENCE, TRAIN, Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"), client_auth=True)


@pytest.fixture(scope="module")
def other_pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Another CA, which the server does not trust."""
    return Pki(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[EtcdServer]:
    """An etcd that requires a client certificate and a user: `jane` may read and write under /jane."""
    server = EtcdServer(
        require_etcd("3.6"), tmp_path_factory.mktemp("guarded"), pki=pki, flags=["--bcrypt-cost", "4"]
    ).start()
    enable_users(server, {"jane": ("secret", "/jane/")})
    yield server
    server.stop()


@pytest.fixture
def job(guarded: EtcdServer, tmp_path: pathlib.Path) -> Iterator[Job]:
    job = Job(tmp_path, f"127.0.0.1:{guarded.port}", nodes="2:2", script=TRAIN)
    yield job
    job.end()


def conf(pki: Pki, **changed: str) -> str:
    """--rdzv-conf, with these keys changed; an empty value removes the key."""
    settings = {
        "protocol": "https",
        "cacert": pki.ca,
        "cert": pki.certificate("client"),
        "key": pki.key("client"),
        "user": "jane",
        "password": "secret",
        "prefix": "/jane",
        "lease_ttl": "3",
        "join_timeout": "30",
        **changed,
    }
    return ",".join(f"{key}={value}" for key, value in settings.items() if value)


def mounted_secret(pki: Pki, folder: pathlib.Path) -> str:
    """The folder of a pod with these credentials."""
    folder.mkdir()
    files = {"ca.crt": pki.ca, "tls.crt": pki.certificate("client"), "tls.key": pki.key("client")}
    for name, path in files.items():
        (folder / name).write_text(pathlib.Path(path).read_text())
    (folder / "username").write_text("jane\n")
    (folder / "password").write_text("secret\n")
    return str(folder)


def test_a_job_trains_and_recovers_over_tls_as_a_user(job: Job, pki: Pki, tmp_path: pathlib.Path) -> None:
    a = job.start("a", rdzv_conf=conf(pki))
    own = dict.fromkeys(("cacert", "cert", "key", "user", "password"), "")
    b = job.start("b", rdzv_conf=conf(pki, **own, credentials=mounted_secret(pki, tmp_path / "etcd")))
    first = job.train("a", "b")
    job.crash("a")
    job.train("a", "b", without=first)
    job.stop()
    assert (a.exit_code(), b.exit_code()) == (0, 0)
    assert "secret" not in a.output + b.output


def test_a_wrong_password_is_reported_in_one_sentence(job: Job, pki: Pki) -> None:
    agent = job.start("a", rdzv_conf=conf(pki, password="hunter2"))
    assert agent.exit_code() == 1, agent.output
    last = agent.output.strip().splitlines()[-1]
    assert last.startswith("torchrun: etcd refuses to grant a lease: user 'jane': authentication failed"), agent.output
    assert "Traceback" not in agent.output
    assert "hunter2" not in agent.output
    assert job.steps("a") == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"password": "hunter2"}, "user 'jane': authentication failed"),
        ({"user": "", "password": ""}, "permission denied"),
        ({"prefix": "/john"}, "/john/job/.*permission denied"),
        ({"cacert": "{other}/ca.crt"}, "its certificate is not accepted"),
        ({"cert": "", "key": ""}, "wants one .cert, key."),
        ({"cert": "{other}/client.crt", "key": "{other}/client.key"}, "does not accept our client certificate"),
        ({"cert": "{pki}/named.crt", "key": "{pki}/named.key"}, "common name .CN."),
        ({"key": "{other}/client.key"}, "client.key: cannot be used as a client certificate: .*key values mismatch"),
        ({"key": "/nowhere.key"}, "/nowhere.key: cannot be used as a client certificate"),
        ({"user": "jane", "password": "", "password_file": "/nowhere"}, "password_file /nowhere: cannot be read"),
    ],
    ids=[
        "wrong password",
        "no user",
        "prefix without permission",
        "untrusted server",
        "no client certificate",
        "untrusted client certificate",
        "client certificate with a common name",
        "key of another certificate",
        "missing key file",
        "missing password file",
    ],
)
def test_wrong_certificates_and_credentials_are_rejected(
    guarded: EtcdServer, pki: Pki, other_pki: Pki, changed: dict[str, str], says: str
) -> None:
    given = conf(
        pki, **{key: value.format(pki=pki.directory, other=other_pki.directory) for key, value in changed.items()}
    )
    settings = dict(one.split("=", 1) for one in given.split(","))
    parameters = RendezvousParameters(
        "etcd-v3", f"127.0.0.1:{guarded.port}", "job", 1, 1, local_addr="127.0.0.1", **settings
    )

    def meet() -> None:
        handler = get_rendezvous_handler(parameters)
        try:
            handler.next_rendezvous()
        finally:
            handler.shutdown()

    with (
        ThreadPoolExecutor(1) as thread,
        pytest.raises((SettingsError, RendezvousConnectionError), match=says),
    ):  # in a thread: the handler must not install its signal handlers in the test
        thread.submit(meet).result(PATIENCE)
