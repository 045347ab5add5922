"""The Secret of an etcd tier: created once, its certificates renewed, and its password never changed."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import pytest
from elasticjob_operator.certificates import LEAF_LIFETIME, CertificateAuthority, expires_at
from elasticjob_operator.kube.certificates import OperatorCertificates
from elasticjob_operator.kube.client import ApiError, ConflictError, NotFoundError
from elasticjob_operator.kube.tier_secrets import TierSecrets
from elasticjob_operator.settings import EtcdTier, Settings
from elasticjob_runtime.etcd import StoreError

TIER = EtcdTier(name="t0", endpoint="https://t0.ops.svc:2379,https://t0-0.t0-peers.ops.svc:2379")
PATH = "/api/v1/namespaces/ops/secrets"


class Server:
    """An API server with Secrets."""

    def __init__(self) -> None:
        self.data: dict[str, dict[str, str]] = {}
        self.writes: list[str] = []
        self.faults: dict[str, ApiError] = {}

    async def request(self, method: str, path: str, *, body: Any = None, **_: Any) -> dict[str, Any]:
        if method in self.faults:
            raise self.faults[method]
        name = body["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        if method == "GET":
            if name not in self.data:
                raise NotFoundError(404, "NotFound", "no such Secret")
            texts = {key: base64.b64encode(text.encode()).decode() for key, text in self.data[name].items()}
            return {"metadata": {"resourceVersion": "1"}, "data": texts}
        self.writes.append(f"{method} {name}")
        self.data.setdefault(name, {}).update(body["stringData"])
        return {}


class Clock:
    now = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.timezone.utc)

    def __call__(self) -> datetime.datetime:
        return self.now


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def secrets_of(server: Server, clock: Clock) -> TierSecrets:
    certificates = OperatorCertificates(server, "ops", "ca", clock=clock)  # type: ignore[arg-type]
    await certificates.open()
    server.writes.clear()
    return TierSecrets(server, Settings(ca_namespace="ops"), certificates)  # type: ignore[arg-type]


async def test_the_secret_has_what_etcd_and_the_operator_need_and_is_made_once(server: Server, clock: Clock) -> None:
    secrets = await secrets_of(server, clock)
    await secrets.prepare(TIER)
    made = dict(server.data["t0"])
    assert set(made) == {
        *("ca.crt", "server.crt", "server.key", "peer-ca.crt", "peer-ca.key", "peer-server.crt", "peer-server.key"),
        *("peer-client.crt", "peer-client.key", "username", "password"),
    }
    assert made["username"] == "root"
    await secrets.prepare(TIER)
    assert server.writes == ["POST t0"]


async def test_certificates_are_renewed_at_half_of_their_life_and_members_still_trust_each_other(
    server: Server, clock: Clock
) -> None:
    secrets = await secrets_of(server, clock)
    await secrets.prepare(TIER)
    before = dict(server.data["t0"])
    clock.now += LEAF_LIFETIME / 2 + datetime.timedelta(days=1)
    await secrets.prepare(TIER)
    after = server.data["t0"]
    assert server.writes == ["POST t0", "PATCH t0"]
    assert expires_at(after["server.crt"]) == clock.now + LEAF_LIFETIME
    for same in ("ca.crt", "peer-ca.crt", "peer-ca.key", "username", "password"):
        assert after[same] == before[same], same
    for new in ("server.key", "peer-server.crt", "peer-client.crt"):
        assert after[new] != before[new], new


async def test_another_authority_of_the_operator_signs_at_once(server: Server, clock: Clock) -> None:
    secrets = await secrets_of(server, clock)
    await secrets.prepare(TIER)
    other = CertificateAuthority.create("other", clock.now)
    server.data["ca"] = {"tls.crt": other.certificate, "tls.key": other.key}
    await (await secrets_of(server, clock)).prepare(TIER)
    assert server.data["t0"]["ca.crt"] == other.certificate


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_fault_names_the_secret(server: Server, clock: Clock, method: str) -> None:
    secrets = await secrets_of(server, clock)
    server.faults[method] = ApiError(500, "InternalError", "no leader")
    with pytest.raises(StoreError, match=r"Secret ops/t0 cannot be made: .*no leader"):
        await secrets.prepare(TIER)


async def test_the_slower_of_two_operators_uses_the_secret_of_the_other(server: Server, clock: Clock) -> None:
    secrets = await secrets_of(server, clock)
    server.faults["POST"] = ConflictError(409, "AlreadyExists", "it exists")
    await secrets.prepare(TIER)
