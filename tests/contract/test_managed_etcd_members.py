"""A job's own etcd with three members, started with the flags of its StatefulSet and the certificates of its Secret: a
member is lost and returns under load, and only members reach each other's port."""

from __future__ import annotations

import datetime
import functools
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from elasticjob_operator.certificates import CertificateAuthority, etcd_certificates, peer_certificates
from elasticjob_operator.names import CERTIFICATES_PATH
from elasticjob_operator.resources.certificates import peer_names, server_names
from elasticjob_operator.resources.etcd import HEALTH_PORT, etcd_stateful_set
from elasticjob_operator.resources.etcd_members import DATA, PEER_PORT
from elasticjob_runtime.contract import DEFAULT_ETCD_PORT
from elasticjob_runtime.etcd import KeyRange, Unavailable, connect

from hack.cluster.output import tail
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child
from hack.support import eventually
from tests.contract.backends import Collector
from tests.contract.etcd_servers import require_etcd
from tests.contract.writers import Writer
from tests.unit.operator.builders import make_job

JOB = make_job(spec={"rendezvous": {"type": "Dedicated", "etcd": {"members": 3, "storage": {}}}})
MEMBERS = ("digits-etcd-0", "digits-etcd-1", "digits-etcd-2")


class Member:
    """`start` may be called again after `kill`: its data is kept."""

    def __init__(self, name: str, flags: list[str], port: int, log: Path) -> None:
        self.name = name
        self.port = port
        self._command = [str(require_etcd("3.6")), *flags]
        self._log = log
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def start(self) -> None:
        self._child = Child(self._command, self._log)

    def kill(self) -> None:
        if self._child is not None:
            self._child.stop(grace=0)

    def takes_writes(self, conf: dict[str, str]) -> bool:
        """Asked alone: clients of all members would ask another one. A member that has ended is an error."""
        if self._child is None or not self._child.alive():
            raise RuntimeError(f"{self.name} has ended; log:\n{tail(self._log)}")
        client = connect(self.url, conf)
        try:
            return client.put("/back", "1") > 0
        except Unavailable as error:
            raise AssertionError(f"{error}; log:\n{tail(self._log)}") from error
        finally:
            client.close()


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        now = datetime.datetime.now(datetime.timezone.utc)
        ca = CertificateAuthority.create("operator", now)
        peers = [*peer_names(JOB), "localhost"]
        for name, text in {**etcd_certificates(ca, server_names(JOB), now), **peer_certificates(peers, now)}.items():
            (folder / name).write_text(text, encoding="ascii")
        self.peer_ports = free_ports(3)
        self.members = [self._member(name, number) for number, name in enumerate(MEMBERS)]

    def _member(self, name: str, number: int) -> Member:
        (container,) = etcd_stateful_set(JOB, "etcd", secret="s")["spec"]["template"]["spec"]["containers"]
        port, health = free_ports(2)
        text = "\n".join(container["command"][1:]).replace("$(ETCD_MEMBER)", name).replace(CERTIFICATES_PATH, "")
        text = text.replace("=/", f"={self.folder}/").replace(f"{self.folder}{DATA}", f"{self.folder}/{name}.data")
        text = text.replace(f"0.0.0.0:{HEALTH_PORT}", f"127.0.0.1:{health}")
        text = text.replace(f"0.0.0.0:{DEFAULT_ETCD_PORT}", f"127.0.0.1:{port}")
        text = text.replace(f"0.0.0.0:{PEER_PORT}", f"127.0.0.1:{self.peer_ports[number]}")
        for other, peer_port in zip(MEMBERS, self.peer_ports, strict=True):
            text = re.sub(rf"//{other}[a-z0-9.-]*:{PEER_PORT}", f"//localhost:{peer_port}", text)
        text = re.sub(rf"//{name}[a-z0-9.-]*:{DEFAULT_ETCD_PORT}", f"//localhost:{port}", text)
        return Member(name, text.splitlines(), port, self.folder / f"{name}.log")

    @property
    def endpoint(self) -> str:
        return ",".join(member.url for member in self.members)

    @property
    def conf(self) -> dict[str, str]:
        files = {"cacert": "ca.crt", "cert": "worker.crt", "key": "worker.key"}
        return {key: str(self.folder / file) for key, file in files.items()}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    for member in cluster.members:
        member.start()
    yield cluster
    for member in cluster.members:
        member.kill()


def test_a_member_that_is_lost_and_returns_under_load_disturbs_no_client(cluster: Cluster) -> None:
    """Each in turn, and so the leader too; as in a rolling update, and with clients at every member."""
    lost: list[str] = []
    clients = [connect(cluster.endpoint, cluster.conf) for _ in range(4)]
    for member in cluster.members:
        eventually(functools.partial(member.takes_writes, cluster.conf), what=f"{member.name} is ready")
    seen = Collector()
    clients[0].watch([KeyRange.prefix("/job/")], 2, seen)
    leases = [client.lease(10, lost.append) for client in clients]
    for number, (client, lease) in enumerate(zip(clients, leases, strict=True)):
        client.put(f"/members/{number}", "", lease=lease.id)
    writer = Writer(clients[1], ["/job/a", "/job/b"])
    for member in cluster.members:
        before = len(writer.written)
        member.kill()
        eventually(lambda before=before: len(writer.written) > before + 20, what="writes")  # type: ignore[misc]
        member.start()
        eventually(functools.partial(member.takes_writes, cluster.conf), what=f"{member.name} is back")
    written = [write.revision for write in writer.stop()]
    eventually(lambda: written[-1] in seen.revisions, what="the watch has every write")
    assert {*written} <= {*seen.revisions}
    assert lost == []
    assert [clients[2].get(f"/members/{number}") is not None for number in range(4)] == [True] * 4
    for client in clients:
        client.close()


@pytest.mark.parametrize("certificate", ["", "worker", "server"])
def test_only_members_reach_the_port_of_the_members(cluster: Cluster, certificate: str) -> None:
    """The certificates of worker pods and of the server itself open the port for clients, not this one."""
    context = ssl.create_default_context(cafile=str(cluster.folder / "peer-ca.crt"))
    if certificate:
        context.load_cert_chain(cluster.folder / f"{certificate}.crt", cluster.folder / f"{certificate}.key")
    port = cluster.peer_ports[0]
    eventually(lambda: listens(port), what="it listens")
    assert not answers(port, context)
    context.load_cert_chain(cluster.folder / "peer-client.crt", cluster.folder / "peer-client.key")
    assert answers(port, context)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(port: int, context: ssl.SSLContext) -> bool:
    """Whether the server answers HTTP. False: it closes the connection because of our certificate."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as connection:
                connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return connection.recv(100).startswith(b"HTTP/1.1 200")
        except (ssl.SSLError, ConnectionError):
            return False
