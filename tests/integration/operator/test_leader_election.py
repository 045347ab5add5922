"""Operators of one release, as the chart starts them: they divide the jobs, take over, and never do two act on one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.loopback import ControlPlane
from hack.support import eventually
from tests.integration.operator.conftest import install_crd
from tests.integration.operator.kube import Json, Kube, Namespace
from tests.integration.operator.process import Gate, Operator, changed_kubeconfig

LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/elasticjob"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "verbs": ["create", "update", "patch", "delete"]}],
}


class Audited(ControlPlane):
    """Its audit log tells who wrote what, and when it was done."""

    def _server_flags(self) -> dict[str, Any]:
        policy = self.directory / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(POLICY), encoding="utf-8")
        return {**super()._server_flags(), "audit-policy-file": policy, "audit-log-path": self.logs / "audit.log"}

    def writes(self, namespace: str) -> list[tuple[str, str, str]]:
        """(when it was answered, by which operator, what) of everything written there but the Lease, in that order."""
        lines = (self.logs / "audit.log").read_text(encoding="utf-8").splitlines()
        entries = [
            entry for entry in map(json.loads, lines) if (entry.get("objectRef") or {}).get("namespace") == namespace
        ]
        return sorted(
            (
                entry["stageTimestamp"],
                entry["user"]["username"].rpartition(":")[2],
                f"{entry['verb']} {entry['objectRef']['resource']}",
            )
            for entry in entries
            if entry["user"]["username"].startswith(f"system:serviceaccount:{namespace}:")
            and entry["objectRef"]["resource"] != "leases"
            and entry["responseStatus"]["code"] < 300
        )


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    server = Audited(tmp_path_factory.mktemp("election"), controllers=["garbage-collector-controller"])
    with server:
        install_crd(server)
        yield server


@pytest.fixture
def ns(audited: Audited) -> Namespace:
    kube = Kube(audited.kubeconfig)
    name = f"le-{time.monotonic_ns() % 10**9}"
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return Namespace(kube, name)


@pytest.fixture
def control_plane(audited: Audited) -> Path:
    return audited.kubeconfig


class Pair:
    """Operators `a` and `b`, each with a ServiceAccount of its own, so that the audit log can tell them apart."""

    def __init__(
        self, server: Audited, ns: Namespace, folder: Path, start: Callable[..., Operator], **environment: str
    ) -> None:
        self._environment = environment
        self._server, self._ns, self._folder, self._start = server, ns, folder, start
        self.operators: dict[str, Operator] = {}

    def start(self, name: str, server: str = "") -> Operator:
        if name not in self.operators:
            kubectl = self._server.kubectl
            kubectl("create", "serviceaccount", name, "-n", self._ns.name)
            account = f"--serviceaccount={self._ns.name}:{name}"
            kubectl("create", "clusterrolebinding", f"{self._ns.name}-{name}", "--clusterrole=cluster-admin", account)
        token = self._server.kubectl("create", "token", name, "-n", self._ns.name).strip()
        config = changed_kubeconfig(self._server.kubeconfig, self._folder / f"{name}.conf", token=token, server=server)
        self.operators[name] = self._start(
            config, ELASTICJOB_LEASE_NAMESPACE=self._ns.name, ELASTICJOB_LOG_FORMAT="json", **self._environment
        )
        return self.operators[name]

    def lease(self) -> Json:
        spec: Json = self._ns.kube.call("GET", LEASE.format(self._ns.name))["spec"]
        return spec

    def shares(self) -> list[int]:
        """How many shards each operator says it leads."""
        return sorted(
            sum(line.startswith("elasticjob_shard_leader{") and line.endswith(" 1.0") for line in text.splitlines())
            for text in (operator.metrics() for operator in self.operators.values())
        )

    @property
    def leader(self) -> str:
        """The one that says it leads; empty: none, or two."""
        leading = [name for name, operator in self.operators.items() if "elasticjob_leader 1.0" in operator.metrics()]
        return leading[0] if len(leading) == 1 else ""


@pytest.fixture
def pair(audited: Audited, ns: Namespace, tmp_path: Path, start_operator: Callable[..., Operator]) -> Pair:
    pair = Pair(audited, ns, tmp_path, start_operator)
    pair.start("a")
    eventually(lambda: pair.leader == "a", what="a leads")
    pair.start("b")
    return pair


def settle(ns: Namespace, job: str, replicas: int) -> None:
    eventually(
        lambda: len([pod for pod in ns.workers() if pod.startswith(f"{job}-")]) == replicas,
        what=f"{replicas} pods of {job}",
    )


def written_in_turns(audited: Audited, ns: Namespace) -> list[str]:
    """Who wrote, one name for each uninterrupted turn, once b has: the API server writes its audit log down a moment
    after it answers."""

    def turns() -> list[str]:
        found: list[str] = []
        for _, who, _ in audited.writes(ns.name):
            found += [who] if found[-1:] != [who] else []
        assert "b" in found, found
        return found

    return eventually(turns, what="b's writes are in the audit log")


def rest(audited: Audited, ns: Namespace) -> None:
    """Waits until no operator writes any more. A request that is on its way when its process freezes may arrive after
    it thaws: docs/design/0006-no-finalizer.md."""
    seen: list[int] = []

    def quiet() -> bool:
        seen.append(len(audited.writes(ns.name)))
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    eventually(quiet, interval=0.2, what="no further writes")


def test_a_leader_that_was_frozen_does_not_act_after_it_thaws(
    audited: Audited, ns: Namespace, pair: Pair, submit: Callable[..., str]
) -> None:
    submit("one", replicas=3)
    settle(ns, "one", 3)
    rest(audited, ns)
    frozen = pair.operators["a"]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        ns.scale("one", 1)
        submit("two", replicas=2)
        settle(ns, "two", 2)
        ns.delete("pods", "two-worker-0")  # what the frozen one will see when it thaws
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    eventually(lambda: pair.leader == "b", what="it notices")
    settle(ns, "two", 2)
    eventually(lambda: frozen.probe("/readyz") == 200, what="it is a standby")
    assert written_in_turns(audited, ns) == ["a", "b"], "never in between"
    pair.operators["b"].kill()
    ns.scale("two", 3)
    settle(ns, "two", 3)
    assert "became leader of shard 0" in frozen.log_text().lower()


def test_a_leader_that_is_cut_off_stops_and_never_acts_with_another(
    audited: Audited,
    ns: Namespace,
    gate: Gate,
    tmp_path: Path,
    start_operator: Callable[..., Operator],
    submit: Callable[..., str],
) -> None:
    pair = Pair(audited, ns, tmp_path, start_operator)
    cut_off = pair.start("a", server=gate.url)
    eventually(lambda: pair.leader == "a", what="a leads")
    pair.start("b")
    submit("one", replicas=2)
    settle(ns, "one", 2)
    gate.shut()
    eventually(lambda: pair.leader == "b", what="b leads alone")
    submit("two", replicas=2)
    settle(ns, "two", 2)
    assert cut_off.returncode is None
    assert written_in_turns(audited, ns) == ["a", "b"]


def test_operators_divide_the_jobs_and_take_over_those_of_one_that_is_killed(
    audited: Audited, ns: Namespace, tmp_path: Path, start_operator: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    pair = Pair(audited, ns, tmp_path, start_operator, ELASTICJOB_SHARDS="4")
    pair.start("a")
    jobs = [submit(f"job-{number}", replicas=1) for number in range(8)]
    for job in jobs:
        settle(ns, job, 1)
    pair.start("b")
    eventually(lambda: pair.shares() == [2, 2], what="each leads two shards")
    for job in jobs:
        ns.scale(job, 2)
    for job in jobs:
        settle(ns, job, 2)
    rest(audited, ns)
    assert {who for _, who, what in audited.writes(ns.name) if what == "create pods"} == {"a", "b"}
    pair.operators.pop("a").kill()
    killed = time.monotonic()
    for job in jobs:
        ns.scale(job, 3)
    for job in jobs:
        settle(ns, job, 3)
    print(f"all jobs were decided on {time.monotonic() - killed:.1f} s after the operator was killed")
    assert pair.shares() == [4]
    assert len(ns.workers()) == 24, "none was created twice"
