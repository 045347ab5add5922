"""An etcd tier as the operator follows it: a new etcd is closed to strangers, and what the operator knows of it."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticjob_operator import names
from elasticjob_operator.credentials import EtcdCredentials
from elasticjob_operator.etcd import Tiers, leftovers, tiers, users
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.settings import EtcdTier, EtcdTiers, Settings
from elasticjob_operator.state import TierView
from elasticjob_runtime.etcd import Denied, EtcdClient, Get, KeyRange, Unavailable, connect

from tests.contract.certificates import Pki
from tests.contract.etcd_servers import ROOT_PASSWORD, EtcdServer, require_etcd
from tests.contract.test_shared_etcd import secret_data
from tests.unit.operator.waiting import until

NAME = "t0"


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
        self.jobs: set[str] | None = None
        """The UIDs of all jobs. None: the API server does not answer."""
        self._tiers = Tiers(settings, self._prepare, self._read, self.runs, cleans=lambda: True, uids=self._uids)
        self.task = asyncio.create_task(self._tiers.follow(tier))

    async def _prepare(self, _: EtcdTier) -> None:
        if self.missing:
            raise Unavailable("Secret ops/t0 cannot be made: no answer")

    async def _uids(self) -> set[str]:
        if self.jobs is None:
            raise Unavailable("cannot list ElasticJobs")
        return self.jobs

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


async def test_what_runs_of_deleted_jobs_left_is_removed_once_their_members_are_gone(
    server: EtcdServer, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator did not run when they were deleted. A member that still answers may be saving."""
    monkeypatch.setattr(tiers, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(tiers, "PREPARE_SECONDS", 0.2)
    monkeypatch.setattr(leftovers, "PAGE", 2)
    alive, deleted, ending = (f"{number}c1f6bde-1f0a-4c1e-9c57-5b1f8a1d2e3f" for number in range(3))
    found = Followed(server.url, pki)
    await found.answers()
    root = client(server, pki, user="root", password=ROOT_PASSWORD)

    async def call(path: str, request: dict[str, Any]) -> dict[str, Any]:
        return server.call(path, request, server._root_token())

    runs = [f"{alive}-1", f"{deleted}-2.3", f"{ending}-1"]
    for run in runs:
        await users.create(call, names.run_user(run), "random", KeyRange.prefix(f"/elasticjob/{run}/"))
        for key in ("spec", "training/progress", "training-progress"):
            root.put(f"/elasticjob/{run}/{key}", "1")
    root.put(f"/elasticjob/{ending}-1/members/a", "1")
    root.put("/elasticjob/someone's", "1")
    root.put("/elasticjob/mine/spec", "1")

    def left() -> tuple[set[str], ...]:
        """Of which runs there are keys; users; roles."""
        kvs = root.range(Get(KeyRange.prefix("/elasticjob/"))).kvs
        users = server.call("/v3/auth/user/list", {}, server._root_token())["users"]
        roles = server.call("/v3/auth/role/list", {}, server._root_token())["roles"]
        runs = {kv.key.removeprefix("/elasticjob/").partition("/")[0] for kv in kvs}
        return runs, set(users) - {"root"}, set(roles) - {"root"}

    await asyncio.sleep(0.5)
    kept = {"someone's", "mine", f"{alive}-1", f"{ending}-1"}
    assert left()[0] == {*kept, f"{deleted}-2.3"}, "nothing is removed while the jobs are not known"
    found.jobs = {alive}
    named = {names.run_user(f"{alive}-1"), names.run_user(f"{ending}-1")}
    await until(lambda: left() == (kept, named, named), seconds=30)
    found.task.cancel()
    root.close()


async def test_a_tier_without_its_secret_says_so(pki: Pki) -> None:
    found = Followed("https://127.0.0.1:1", pki)
    found.missing = True
    await until(lambda: found.view.error == "Secret ops/t0 cannot be made: no answer")
    found.task.cancel()
