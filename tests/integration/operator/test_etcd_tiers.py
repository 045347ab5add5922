"""Etcd tiers: real API server, operator and etcds, which run with the certificates that the operator has made."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.support import eventually
from tests.contract.certificates import Pki
from tests.contract.etcd_servers import EtcdServer, require_etcd
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator

NAMES = ("tier-0", "tier-1")


class TierFiles(Pki):
    """What a tier's pods mount, once the operator has created their Secret."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory, self.client_auth = directory, False
        self.data: dict[str, str] = {}

    def write(self, ns: Namespace, name: str) -> None:
        eventually(lambda: ns.get("secrets", name), what=f"Secret {name}")
        data = (ns.get("secrets", name) or {})["data"]
        self.data = {key: base64.b64decode(text).decode() for key, text in data.items()}
        for key, text in self.data.items():
            (self.directory / key).write_text(text)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


class Tier:
    """An etcd of one member, as the chart would run three."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.files = TierFiles(folder / f"{name}-files")
        self.server = EtcdServer(require_etcd("3.6"), folder, name=name, pki=self.files, flags=["--bcrypt-cost", "4"])

    def start(self, ns: Namespace) -> None:
        self.files.write(ns, self.name)
        self.server.launch()

    def call(self, path: str, **request: Any) -> dict[str, Any]:
        """As root."""
        login = {"name": self.files.data["username"], "password": self.files.data["password"]}
        token = str(self.server.call("/v3/auth/authenticate", login)["token"])
        return self.server.call(path, request, token)

    def left_of(self, uid: str) -> set[str]:
        """Users, roles and keys of the runs of a job."""
        found = {item for kind in ("user", "role") for item in self.call(f"/v3/auth/{kind}/list")[f"{kind}s"]}
        begin, end = (
            base64.b64encode(text.encode()).decode() for text in (f"/elasticjob/{uid}", f"/elasticjob/{uid}~")
        )
        keys = self.call("/v3/kv/range", key=begin, range_end=end, keys_only=True).get("kvs") or []
        return {item for item in found if uid in item} | {base64.b64decode(key["key"]).decode() for key in keys}


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[dict[str, Tier]]:
    found = {name: Tier(name, tmp_path) for name in NAMES}
    yield found
    for tier in found.values():
        tier.server.stop()


@pytest.fixture
def start(tiers: dict[str, Tier], start_operator: Callable[..., Operator]) -> Callable[..., Operator]:
    def start(*closed: str, max_runs: int = 100) -> Operator:
        named = [
            {"name": tier.name, "endpoint": tier.server.url, "open": tier.name not in closed} for tier in tiers.values()
        ]
        return start_operator(ELASTICJOB_ETCD_TIERS=json.dumps({"tiers": named, "maxRuns": max_runs}))

    return start


def tier_of(ns: Namespace, job: str = "digits") -> str:
    return str((ns.status(job).get("rendezvous") or {}).get("tier", ""))


def endpoints(ns: Namespace) -> set[str]:
    """Where the worker pods meet."""
    containers = [pod["spec"]["containers"][0] for pod in ns.workers().values()]
    return {
        variable["value"] for one in containers for variable in one["env"] if variable["name"] == "PET_RDZV_ENDPOINT"
    }


def test_a_run_has_a_user_in_its_tier_from_its_start_to_its_end(
    ns: Namespace, tiers: dict[str, Tier], start: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    operator, tier = start("tier-1"), tiers["tier-0"]
    submit(endpoint="", replicas=1)
    eventually(lambda: ns.condition("digits", "RendezvousReady").get("reason") == "NoEtcdTier", what="no tier is up")
    assert not ns.workers()
    tier.start(ns)
    eventually(ns.workers, what="a worker pod", timeout=60)
    uid = ns.job("digits")["metadata"]["uid"]
    assert tier_of(ns) == "tier-0"
    assert endpoints(ns) == {tier.server.url}
    assert {f"elasticjob-{uid}-1", f"/elasticjob/{uid}-1/spec"} <= tier.left_of(uid)
    assert not ns.get("statefulsets", "digits-etcd")
    eventually(lambda: 'elasticjob_etcd_tier_runs{tier="tier-0"} 1.0' in operator.metrics(), what="it is counted")
    ns.delete("elasticjobs", "digits")
    eventually(lambda: not tier.left_of(uid), what="user, role and keys of the run are removed", timeout=60)


def test_a_job_that_is_suspended_or_deleted_while_no_operator_runs_leaves_nothing_in_its_tier(
    ns: Namespace, tiers: dict[str, Tier], start: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    operator, tier = start("tier-1"), tiers["tier-0"]
    tier.start(ns)
    jobs = [submit(name, endpoint="", replicas=1) for name in ("suspended", "deleted", "kept")]
    eventually(lambda: len(ns.workers()) == 3, what="a worker pod of each", timeout=60)
    uid = {name: ns.job(name)["metadata"]["uid"] for name in jobs}
    operator.stop()
    before = {name: tier.left_of(uid[name]) for name in jobs}
    assert all(before.values())
    ns.patch("elasticjobs", "suspended", {"spec": {"suspend": True}})
    ns.delete("elasticjobs", "deleted")
    start("tier-1")
    for name in ("suspended", "deleted"):
        eventually(lambda name=name: not tier.left_of(uid[name]), 60, what=f"user, role and keys of {name} are removed")  # type: ignore[misc]
    assert tier.left_of(uid["kept"]) >= before["kept"]


def test_the_next_run_moves_from_a_closed_tier_and_this_one_stays(
    ns: Namespace, tiers: dict[str, Tier], start: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    operator = start("tier-1")
    for tier in tiers.values():
        tier.start(ns)
    submit(endpoint="", replicas=1)
    eventually(ns.workers, what="a worker pod", timeout=60)
    operator.stop()
    start("tier-0")
    eventually(lambda: ns.is_true("digits", "RendezvousReady"), what="the run stays where it is")
    assert (tier_of(ns), endpoints(ns)) == ("tier-0", {tiers["tier-0"].server.url})
    uid = ns.job("digits")["metadata"]["uid"]
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": True}})
    eventually(lambda: ns.is_true("digits", "Suspended"), what="Suspended")
    eventually(lambda: not tiers["tier-0"].left_of(uid), what="user, role and keys of the run are removed")
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": False}})
    eventually(lambda: endpoints(ns) == {tiers["tier-1"].server.url}, what="a worker pod in the other tier", timeout=60)
    assert tier_of(ns) == "tier-1"
    assert f"elasticjob-{uid}-2" in tiers["tier-1"].left_of(uid)


def test_a_run_waits_for_a_place_in_a_full_tier_and_the_end_of_another_gives_it_one(
    ns: Namespace, tiers: dict[str, Tier], start: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    start("tier-1", max_runs=1)
    tiers["tier-0"].start(ns)
    submit(endpoint="", replicas=1)
    eventually(lambda: tier_of(ns), what="a tier", timeout=60)
    submit("other", endpoint="", replicas=1)
    eventually(lambda: ns.condition("other", "Running").get("reason") == "NoEtcdTier", what="it waits")
    message = ns.condition("other", "RendezvousReady")["message"]
    assert "Etcd tier tier-0 takes no new run: it is full: 1 runs" in message
    assert not [pod for pod in ns.workers() if pod.startswith("other")]
    ns.delete("elasticjobs", "digits")
    eventually(lambda: tier_of(ns, "other") == "tier-0", what="its turn", timeout=60)
