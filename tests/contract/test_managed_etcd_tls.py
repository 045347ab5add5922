"""A job's own etcd, started with the flags of its StatefulSet and the certificates of its Secret: whom it lets in, and
what the clients of operator and worker pods say where they are not."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticjob_operator.certificates import CertificateAuthority, KeyPair, Usage, etcd_certificates
from elasticjob_operator.etcd.client import AsyncEtcdClient, SharedResources
from elasticjob_operator.etcd.responses import Untrusted
from elasticjob_operator.names import CERTIFICATES_PATH
from elasticjob_operator.resources.etcd import HEALTH_PORT, etcd_stateful_set
from elasticjob_runtime.contract import DEFAULT_ETCD_PORT
from elasticjob_runtime.etcd import Denied, KeyRange, Put, connect

from hack.cluster.ports import free_ports
from hack.cluster.processes import Child
from tests.contract.etcd_servers import require_etcd
from tests.unit.operator.builders import make_job

NAMES = ("digits-etcd.ml.svc", "*.digits-etcd.ml.svc")
LEAF = datetime.timedelta(days=1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


class ManagedEtcd:
    """`made_at`: of its certificates."""

    def __init__(self, folder: Path, ca: CertificateAuthority, made_at: datetime.datetime) -> None:
        self.folder = folder
        for name, text in etcd_certificates(ca, NAMES, made_at).items():
            (folder / name).write_text(text, encoding="ascii")
        self.port, self.health_port, peer = free_ports(3)
        (container,) = etcd_stateful_set(make_job(), "etcd", secret="s")["spec"]["template"]["spec"]["containers"]
        _, *flags = container["command"]
        local = {
            CERTIFICATES_PATH: str(folder),
            "/var/lib/etcd": str(folder / "data"),
            f"0.0.0.0:{DEFAULT_ETCD_PORT}": f"127.0.0.1:{self.port}",
            f"0.0.0.0:{HEALTH_PORT}": f"127.0.0.1:{self.health_port}",
            "127.0.0.1:2380": f"127.0.0.1:{peer}",
        }
        for old, new in local.items():
            flags = [flag.replace(old, new) for flag in flags]
        self._child = Child([str(require_etcd("3.6")), *flags], folder / "etcd.log")
        self._child.wait_until(self.healthy)

    @property
    def endpoint(self) -> str:
        return f"https://localhost:{self.port}"

    def healthy(self) -> bool:
        """As the kubelet asks: without a certificate."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def conf(self, **changed: str) -> dict[str, str]:
        """The TLS keys of a worker pod's PET_RDZV_CONF."""
        files = {"cacert": "ca.crt", "cert": "worker.crt", "key": "worker.key"}
        return {**{key: str(self.folder / file) for key, file in files.items()}, "read_timeout": "3", **changed}

    def stop(self) -> None:
        self._child.stop(grace=0)


@pytest.fixture
def ca() -> CertificateAuthority:
    return CertificateAuthority.create("operator", now() - datetime.timedelta(days=800))


@pytest.fixture
def start_etcd(tmp_path: Path, ca: CertificateAuthority) -> Iterator[Callable[..., ManagedEtcd]]:
    started: list[ManagedEtcd] = []

    def start(made_at: datetime.datetime | None = None) -> ManagedEtcd:
        folder = tmp_path / f"etcd-{len(started)}"
        folder.mkdir()
        started.append(ManagedEtcd(folder, ca, made_at or now()))
        return started[-1]

    yield start
    for etcd in started:
        etcd.stop()


StartEtcd = Callable[..., ManagedEtcd]


@dataclasses.dataclass(frozen=True)
class Case:
    """Certificates of now, of the operator's authority, but for:"""

    ours_made: datetime.timedelta = datetime.timedelta()
    theirs_made: datetime.timedelta = datetime.timedelta()
    our_ca: str = ""
    trusted_ca: str = ""


def with_certificate(folder: Path, own: KeyPair, trusted: CertificateAuthority) -> ssl.SSLContext:
    file = folder / "own.pem"
    file.write_text(own.certificate + own.key, encoding="ascii")
    context = ssl.create_default_context(cadata=trusted.certificate)
    context.load_cert_chain(file)
    return context


def test_worker_pods_use_it_with_the_certificate_of_their_job(start_etcd: StartEtcd) -> None:
    etcd = start_etcd()
    worker = connect(etcd.endpoint, etcd.conf())
    worker.put("/elasticjob/r/plan", "1")
    assert worker.lease(5, lambda _: None).id
    worker.close()


async def test_the_operator_uses_it_with_its_own_certificate(
    start_etcd: StartEtcd, ca: CertificateAuthority, tmp_path: Path
) -> None:
    context = with_certificate(tmp_path, ca.sign(Usage.CLIENT, now(), lifetime=LEAF), ca)
    client = AsyncEtcdClient(start_etcd().endpoint, SharedResources(), tls=lambda: context)
    written = (await client.txn([Put("/elasticjob/r/spec", "1")])).revision
    async with contextlib.aclosing(client.watch(KeyRange.prefix("/elasticjob/"), written, lambda: 10.0)) as stream:
        async for events in stream:
            if events:
                assert [event.key for event in events] == ["/elasticjob/r/spec"]
                break
    client.close()


@pytest.mark.parametrize("who", ["a pod without a certificate", "a worker pod of another job", "another job's etcd"])
def test_strangers_are_refused_at_once(start_etcd: StartEtcd, who: str) -> None:
    etcd, other = start_etcd(), start_etcd()
    conf = {"cacert": str(etcd.folder / "ca.crt"), "read_timeout": "3"}
    if who != "a pod without a certificate":
        name = "worker" if "worker" in who else "server"
        conf |= {"cert": str(other.folder / f"{name}.crt"), "key": str(other.folder / f"{name}.key")}
    stranger = connect(etcd.endpoint, conf)
    with pytest.raises(Denied, match="does not accept our client certificate"):
        stranger.get("/elasticjob/r/plan")
    stranger.close()


LONG_AGO, TOMORROW = datetime.timedelta(days=-500), datetime.timedelta(days=1)
UNTRUSTED = {
    "ours has expired": (Case(ours_made=LONG_AGO), "certificate has expired|CERTIFICATE_EXPIRED"),
    "theirs has expired": (Case(theirs_made=LONG_AGO), "certificate has expired|CERTIFICATE_EXPIRED"),
    "ours is of a foreign authority": (Case(our_ca="foreign"), "does not accept the operator's certificate"),
    "theirs is of a foreign authority": (Case(trusted_ca="foreign"), "certificate is not trusted"),
    "ours is not valid yet: our clock is a day ahead": (
        Case(ours_made=TOMORROW), "does not accept the operator's certificate",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "message"), UNTRUSTED.values(), ids=UNTRUSTED)
async def test_the_operator_says_what_is_wrong_with_a_certificate(
    start_etcd: StartEtcd, ca: CertificateAuthority, tmp_path: Path, case: Case, message: str
) -> None:
    """And tells it from an etcd that is unreachable."""
    authorities = {"": ca, "foreign": CertificateAuthority.create("foreign", now())}
    etcd = start_etcd(made_at=now() + case.theirs_made)
    own = authorities[case.our_ca].sign(Usage.CLIENT, now() + case.ours_made, lifetime=LEAF)
    context = with_certificate(tmp_path, own, authorities[case.trusted_ca])
    client = AsyncEtcdClient(etcd.endpoint, SharedResources(), tls=lambda: context)
    with pytest.raises(Untrusted, match=message):
        await client.revision("/elasticjob/")
    client.close()


@pytest.mark.parametrize(("which", "message"), [("expired", "certificate has expired"), ("foreign", "local issuer")])
def test_a_worker_pod_names_what_is_wrong_with_the_certificate_of_its_etcd(
    start_etcd: StartEtcd, which: str, message: str
) -> None:
    etcd = start_etcd(made_at=now() - datetime.timedelta(days=500) if which == "expired" else None)
    foreign = etcd.folder / "foreign.crt"
    foreign.write_text(CertificateAuthority.create("foreign", now()).certificate, encoding="ascii")
    worker = connect(etcd.endpoint, etcd.conf(**({"cacert": str(foreign)} if which == "foreign" else {})))
    with pytest.raises(Denied, match=f"its certificate is not accepted: .*{message}"):
        worker.get("/elasticjob/r/plan")
    worker.close()


async def test_the_operator_connects_with_its_newest_certificate(
    start_etcd: StartEtcd, ca: CertificateAuthority, tmp_path: Path
) -> None:
    """A client lives as long as its watch, which may be longer than a certificate of the operator."""
    long_ago = now() - datetime.timedelta(days=500)
    contexts = [
        with_certificate(tmp_path, ca.sign(Usage.CLIENT, made_at, lifetime=LEAF), ca) for made_at in (long_ago, now())
    ]
    client = AsyncEtcdClient(start_etcd().endpoint, SharedResources(), tls=lambda: contexts[0])
    with pytest.raises(Untrusted):
        await client.revision("/elasticjob/")
    contexts.pop(0)
    assert await client.revision("/elasticjob/")
    client.close()
