"""The etcd tiers that the chart runs: their flags, with certificates as the operator makes them, form an etcd; and the
operator may write their Secrets and no others."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticjob_operator.certificates import LEAF_LIFETIME, CertificateAuthority, expires_at, tier_certificates
from elasticjob_operator.credentials import EtcdCredentials
from elasticjob_operator.etcd import Tiers
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.settings import EtcdTier, EtcdTiers, Settings
from elasticjob_runtime.etcd import StoreError, connect, parse_endpoints

from hack.cluster import ControlPlane
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child
from hack.support import eventually
from tests.contract.etcd_servers import require_etcd
from tests.integration.chart import Release, of_kind, rendered
from tests.integration.operator.kube import ApiStatusError, Kube
from tests.integration.test_chart_rights import kubeconfig_of_operator
from tests.unit.operator.waiting import until

NAME = "ej-elasticjob-tier-0"


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


class Members:
    """The three members of a tier, on this machine instead of in pods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        objects = rendered("etcd.mode=Shared", "etcd.tiers=1")
        (stateful_set,) = of_kind(objects, "StatefulSet")
        self.spec = stateful_set["spec"]["template"]["spec"]
        (deployment,) = of_kind(objects, "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        environment = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        (tier,) = Settings.from_environment(environment).etcd_tiers.tiers
        self.hosts = [endpoint.host for endpoint in parse_endpoints(tier.endpoint)]
        self.ca = CertificateAuthority.create("operator", now() - datetime.timedelta(days=400))
        self.data = {"username": "root", "password": "random"}
        self.write_certificates(now() - LEAF_LIFETIME / 2)
        self.ports, self.peer_ports, self.health_ports = (free_ports(3) for _ in range(3))
        self.children = [self._start(number) for number in range(3)]

    def write_certificates(self, made_at: datetime.datetime) -> None:
        """In the files that the pods mount, as the kubelet writes them."""
        peer_ca = self.data.get("peer-ca.crt", ""), self.data.get("peer-ca.key", "")
        self.data |= tier_certificates(self.ca, [*self.hosts, "localhost"], made_at, peer_ca)
        (volume,) = self.spec["volumes"]
        for item in volume["secret"]["items"]:
            (self.folder / item["path"]).write_text(self.data[item["key"]], encoding="ascii")

    def _start(self, number: int) -> Child:
        (container,) = self.spec["containers"]
        name = f"{NAME}-{number}"
        text = "\n".join(container["command"][1:]).replace("$(ETCD_MEMBER)", name)
        text = text.replace("=/etc/elasticjob/etcd/", f"={self.folder}/")
        text = text.replace("=/var/lib/etcd/", f"={self.folder}/{name}.")
        for inside, outside in ((2379, self.ports), (2380, self.peer_ports), (2381, self.health_ports)):
            text = text.replace(f"0.0.0.0:{inside}", f"127.0.0.1:{outside[number]}")
            for other in range(3):
                text = re.sub(rf"//{NAME}-{other}[a-z0-9.-]*:{inside}", f"//localhost:{outside[other]}", text)
        return Child([str(require_etcd("3.6")), *text.splitlines()], self.folder / f"{name}.log")

    @property
    def endpoint(self) -> str:
        return ",".join(f"https://localhost:{port}" for port in self.ports)

    async def read_secret(self, _: NamespacedName) -> EtcdCredentials:
        data = {key: base64.b64encode(text.encode()).decode() for key, text in self.data.items()}
        return EtcdCredentials.parse(f"Secret system/{NAME}", data)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    found = Members(tmp_path)
    yield found
    for child in found.children:
        child.stop(grace=0)


async def test_the_members_form_an_etcd_that_survives_one_of_them_and_new_certificates(members: Members) -> None:
    tier = EtcdTier(name=NAME, endpoint=members.endpoint)
    settings = Settings(etcd_tiers=EtcdTiers(tiers=(tier,)), ca_namespace="system")

    async def prepare(_: EtcdTier) -> None: ...

    async def no_jobs() -> tuple[str, ...]:
        return ()

    tiers = Tiers(settings, prepare, members.read_secret, {}, cleans=lambda: False, uids=no_jobs)
    following = asyncio.create_task(tiers.follow(tier))
    await until(lambda: tiers.views[NAME].asked and not tiers.views[NAME].error, seconds=60)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await asyncio.to_thread(_use, members)


def _use(members: Members) -> None:
    login = {"cacert": str(members.folder / "ca.crt"), "user": "root", "password": "random"}
    (members.folder / "ca.crt").write_text(members.data["ca.crt"])
    client = connect(members.endpoint, login)
    client.put("/before", "1")
    members.write_certificates(now())
    members.children[0].stop(grace=0)

    def takes_writes() -> bool:
        with contextlib.suppress(StoreError):  # a write whose answer was lost, or that found no leader yet
            return client.put("/without", "1") > 0
        return False

    eventually(takes_writes, what="two of three members take writes")
    members.children[0] = members._start(0)  # it connects to its peers with the new certificates, and they to it
    alone = connect(f"https://localhost:{members.ports[0]}", login)

    def is_back() -> bool:
        with contextlib.suppress(Exception):
            return alone.get("/without") is not None
        return False

    eventually(is_back, what="the member is back")
    client.close()
    alone.close()
    assert expires_at(members.data["server.crt"]) > now() + LEAF_LIFETIME * 0.9


@pytest.fixture(scope="module")
def release(control_plane_server: ControlPlane) -> Iterator[Release]:
    release = Release(control_plane_server, "etcd.mode=Shared", "etcd.tiers=1")
    release.install()
    yield release
    release.uninstall()


def test_the_operator_may_write_the_secrets_of_its_tiers_and_no_others(release: Release, tmp_path: Path) -> None:
    operator = Kube(kubeconfig_of_operator(release, tmp_path))
    path = f"/api/v1/namespaces/{release.namespace}/secrets"

    def refusal(method: str, name: str) -> str:
        body: Any = {"metadata": {"name": name}, "type": "Opaque", "stringData": {"username": "root"}}
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            where = path if method == "POST" else f"{path}/{name}"
            operator.call(method, where, None if method == "DELETE" else body, kind, dryRun="All")
        except ApiStatusError as error:
            return str(error)
        return ""

    eventually(lambda: "may write only objects" in refusal("POST", "another"), what="the policy is in force")
    assert not refusal("POST", NAME)
    for name in (NAME, "another"):
        release.kubectl("create", "secret", "generic", name, "--namespace", release.namespace)
    assert not refusal("PATCH", NAME)
    assert "may change and delete only objects" in refusal("DELETE", NAME)
    assert "403" in refusal("PATCH", "another")
    assert release.may("get", "secrets", release.namespace, name=NAME)
    assert not release.may("get", "secrets", "anywhere", name=NAME)
