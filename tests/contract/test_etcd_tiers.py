"""An etcd tier as the operator follows it: a new etcd is closed to strangers, and what the operator knows of it."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from elasticjob_operator.credentials import EtcdCredentials
from elasticjob_operator.etcd import Tiers
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.settings import EtcdTier, EtcdTiers, Settings
from elasticjob_operator.state import TierView
from elasticjob_runtime.etcd import Denied, EtcdClient, Unavailable, connect

from tests.contract.certificates import Pki
from tests.contract.etcd_servers import ROOT_PASSWORD, EtcdServer, require_etcd
from tests.contract.test_shared_etcd import secret_data
from tests.unit.operator.waiting import until

NAME = "t0"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def server(tmp_path: Path, pki: Pki) -> Iterator[EtcdServer]:
    """New: without users."""
    server = EtcdServer(require_etcd("3.6"), tmp_path, pki=pki, flags=["--bcrypt-cost", "4"]).start()
    yield server
    server.stop()


class Followed:
    def __init__(self, endpoint: str, pki: Pki) -> None:
        tier = EtcdTier(name=NAME, endpoint=endpoint)
        self.runs: collections.Counter[str] = collections.Counter()
        self.pki = pki
        self.missing = False
        settings = Settings(etcd_tiers=EtcdTiers(tiers=(tier,), max_runs=2), ca_namespace="ops")
        self._tiers = Tiers(settings, self._prepare, self._read, self.runs)
        self.task = asyncio.create_task(self._tiers.follow(tier))

    async def _prepare(self, _: EtcdTier) -> None:
        if self.missing:
            raise Unavailable("Secret ops/t0 cannot be made: no answer")

    async def _read(self, secret: NamespacedName) -> EtcdCredentials:
        assert secret == ("ops", NAME)
        return EtcdCredentials.parse("Secret ops/t0", secret_data(self.pki))

    @property
    def view(self) -> TierView:
        return self._tiers.views[NAME]

    async def answers(self) -> None:
        await until(lambda: self.view.asked and not self.view.error, seconds=30)


@pytest.fixture
async def followed(server: EtcdServer, pki: Pki) -> AsyncIterator[Followed]:
    found = Followed(server.url, pki)
    yield found
    found.task.cancel()
    await asyncio.gather(found.task, return_exceptions=True)


def client(server: EtcdServer, pki: Pki, **login: str) -> EtcdClient:
    return connect(server.url, {"cacert": pki.ca, **login})


async def test_a_new_tier_lets_in_the_operator_and_no_stranger(server: EtcdServer, pki: Pki) -> None:
    """Neither one without a user, nor one who has made himself a user before the operator came."""
    for path, request in (
        ("/v3/auth/user/add", {"name": "thief", "password": "stolen"}),
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/grant", {"user": "thief", "role": "root"}),
        ("/v3/auth/user/add", {"name": "root", "password": "an operator that was killed had another one"}),
    ):
        server.call(path, request)
    found = Followed(server.url, pki)
    await found.answers()
    found.task.cancel()
    root = client(server, pki, user="root", password=ROOT_PASSWORD)
    root.put("/mine", "1")
    for login in (("", ""), ("thief", "stolen")):
        stranger = client(server, pki, **dict(zip(("user", "password"), filter(None, login), strict=False)))
        with pytest.raises(Denied):
            stranger.get("/mine")
        stranger.close()
    root.close()


async def test_the_operator_knows_how_full_a_tier_is_and_since_when(followed: Followed, server: EtcdServer) -> None:
    await followed.answers()
    assert followed.view.bytes > 0
    assert (followed.view.leases, followed.view.since) == (0, None)
    followed.runs[NAME] = 2
    assert followed.view.runs == 2
    server.kill()
    await until(lambda: bool(followed.view.error), seconds=30)
    assert followed.view.since is not None
    followed.runs[NAME] = 0
    server.start_guarded()
    server.call("/v3/lease/grant", {"TTL": 60, "ID": 77}, server._root_token())
    await until(lambda: followed.view.leases == 1, seconds=30)
    assert followed.view == TierView(asked=True, leases=1, bytes=followed.view.bytes)


async def test_a_tier_without_its_secret_says_so(pki: Pki) -> None:
    found = Followed("https://127.0.0.1:1", pki)
    found.missing = True
    await until(lambda: found.view.error == "Secret ops/t0 cannot be made: no answer")
    found.task.cancel()
