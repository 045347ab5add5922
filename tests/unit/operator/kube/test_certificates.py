from __future__ import annotations

import base64
import datetime
import re
from typing import Any

import pytest
from elasticjob_operator.certificates import CertificateAuthority
from elasticjob_operator.kube.certificates import OWN_LIFETIME, CertificatesUnavailable, OperatorCertificates
from elasticjob_operator.kube.client import ConflictError, NotFoundError

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.timezone.utc)
NAMES = ("digits-etcd.ml.svc",)


class Server:
    """An API server with Secrets. `rival` is created by another operator just before ours."""

    def __init__(self, rival: CertificateAuthority | None = None) -> None:
        self.secrets: dict[str, dict[str, Any]] = {}
        self._rival = rival

    async def request(self, method: str, path: str, *, body: Any = None, **_: Any) -> dict[str, Any]:
        if method == "POST":
            if self._rival is not None:
                self.put(f"{path}/ca", self._rival.certificate, self._rival.key)
                raise ConflictError(409, "AlreadyExists", "it exists")
            self.put(f"{path}/{body['metadata']['name']}", body["stringData"]["tls.crt"], body["stringData"]["tls.key"])
            return {}
        if path not in self.secrets:
            raise NotFoundError(404, "NotFound", "no such Secret")
        return self.secrets[path]

    def put(self, path: str, certificate: str, key: str) -> None:
        data = {"tls.crt": certificate, "tls.key": key}
        self.secrets[path] = {"data": {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}}


class Clock:
    now = NOW

    def __call__(self) -> datetime.datetime:
        return self.now


def certificates(server: Server, clock: Clock | None = None, *, create: bool = True) -> OperatorCertificates:
    return OperatorCertificates(server, "ops", "ca", create=create, clock=clock or Clock())  # type: ignore[arg-type]


async def test_the_ca_is_created_once_and_read_afterwards() -> None:
    server = Server()
    first, second = certificates(server), certificates(server)
    assert await first.open()
    assert await second.open()
    assert (await first.for_etcd(NAMES))["ca.crt"] == (await second.for_etcd(NAMES))["ca.crt"]


async def test_the_slower_of_two_operators_reads_the_others_ca() -> None:
    rival = CertificateAuthority.create("rival", NOW)
    ours = certificates(Server(rival))
    assert await ours.open()
    assert (await ours.for_etcd(NAMES))["ca.crt"] == rival.certificate


async def test_the_operators_own_certificate_is_replaced_before_it_expires() -> None:
    clock = Clock()
    ours = certificates(Server(), clock)
    await ours.open()
    first = ours.context()
    clock.now = NOW + OWN_LIFETIME / 2 - datetime.timedelta(seconds=1)
    assert ours.context() is first
    clock.now = NOW + OWN_LIFETIME / 2
    assert ours.context() is not first


async def test_an_unusable_ca_is_reported_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    server, path = Server(), "/api/v1/namespaces/ops/secrets/ca"
    server.put(path, "no certificate", "no key")
    ours = certificates(server)
    assert not await ours.open()
    assert not await ours.open()
    assert [record.levelname for record in caplog.records] == ["ERROR"], "once"
    with pytest.raises(CertificatesUnavailable, match="Secret ops/ca with the operator's certificate authority"):
        ours.context()
    with pytest.raises(CertificatesUnavailable, match="no certificate and key in PEM format"):
        await ours.for_etcd(NAMES)
    del server.secrets[path]
    assert await ours.open()
    assert ours.context()


async def test_a_ca_that_expires_soon_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    ca = CertificateAuthority.create("old", NOW, datetime.timedelta(days=100))
    server.put("/api/v1/namespaces/ops/secrets/ca", ca.certificate, ca.key)
    assert await certificates(server).open()
    assert "expires on 2026-10-09" in caplog.text


@pytest.mark.parametrize("off_by", [datetime.timedelta(days=-1), datetime.timedelta(days=365 * 11)])
async def test_a_ca_that_is_not_valid_now_signs_nothing_and_the_remedy_is_named(off_by: datetime.timedelta) -> None:
    """It has expired, or a clock is far off."""
    clock = Clock()
    ours = certificates(Server(), clock)
    assert await ours.open()
    clock.now = NOW + off_by
    remedy = re.escape("If the clock is wrong, correct it. Otherwise delete the Secret and restart the operator")
    with pytest.raises(CertificatesUnavailable, match=remedy):
        ours.context()
    with pytest.raises(CertificatesUnavailable, match=remedy):
        await ours.for_etcd(NAMES)
    clock.now = NOW
    assert ours.context()


async def test_without_tls_a_ca_is_used_but_none_is_created() -> None:
    """For the jobs that started with TLS before it was turned off."""
    server = Server()
    without = certificates(server, create=False)
    assert await without.open()
    assert not server.secrets
    with pytest.raises(CertificatesUnavailable, match="it does not exist"):
        without.context()
    await certificates(server).open()
    assert await without.open()
    assert without.context()
