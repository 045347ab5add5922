"""The operator with an API server that fails in every way: requests, watches, a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.cluster import components
from hack.cluster.loopback import ControlPlane
from hack.support import eventually
from tests.integration.operator.conftest import TEMPLATE, install_crd, rfc3339
from tests.integration.operator.faulty import Answer, Drop, Fault, FaultyServer, Page, Request, Slow
from tests.integration.operator.kube import ApiStatusError, Kube, Namespace
from tests.integration.operator.process import Operator


@pytest.fixture
def operator(server: FaultyServer, tmp_path: Path, start_operator: Callable[..., Operator]) -> Operator:
    return start_operator(server.kubeconfig(tmp_path), ELASTICJOB_RESYNC_SECONDS="5")


def every(count: int, fault: Fault, wanted: Callable[[Request], bool]) -> Callable[[Request], Fault | None]:
    """That fault for all but each `count`th of the requests that are `wanted`."""
    seen = 0
    lock = threading.Lock()

    def decide(request: Request) -> Fault | None:
        nonlocal seen
        if not wanted(request):
            return None
        with lock:
            seen += 1
            return None if seen % count == 0 else fault

    return decide


def live(ns: Namespace, job: str = "digits") -> None:
    """A start, a failure, a scaling: each with all its writes."""
    eventually(lambda: set(ns.workers()) == {f"{job}-worker-0", f"{job}-worker-1"}, what="two workers", timeout=60)
    eventually(lambda: ns.is_true(job, "Accepted"), what="Accepted", timeout=60)
    first = ns.workers()[f"{job}-worker-0"]["metadata"]["uid"]
    ns.run(f"{job}-worker-0")
    ns.run(f"{job}-worker-1")
    ns.end(f"{job}-worker-0", 1, at=rfc3339())
    replaced = f"{job}-worker-0"
    eventually(
        lambda: (pod := ns.workers().get(replaced)) and pod["metadata"]["uid"] != first, what="replaced", timeout=60
    )
    eventually(lambda: ns.status(job).get("restarts", {}).get("total") == 1, what="one restart is counted", timeout=60)
    ns.scale(job, 3)
    eventually(
        lambda: set(ns.workers()) == {f"{job}-worker-{index}" for index in range(3)}, what="three workers", timeout=60
    )
    eventually(lambda: ns.status(job)["workers"].endswith("/3"), what="status", timeout=60)
    assert ns.status(job)["restarts"]["total"] == 1


FAULTS: dict[str, Callable[[Request], Fault | None]] = {
    "every other write is a conflict": every(2, Answer(409, "Conflict"), lambda r: r.is_write and r.method != "POST"),
    "every other write is lost": every(2, Drop(), lambda r: r.is_write),
    "the answer to every other write is lost": every(2, Drop(acted=True), lambda r: r.is_write),
    "all requests are slow": lambda r: None if r.is_watch else Slow(0.3),
    "every other request, except kopf's, gets a page of a proxy": every(
        2, Page(), lambda r: r.path.startswith("/api/v1/")
    ),
    "two of three requests of any kind are answered 503": every(3, Answer(503, "ServiceUnavailable"), lambda _: True),
}


OF_EACH_RUN = ("the answer to every other write is lost", "two of three requests of any kind are answered 503")
"""The others differ little from these."""


@pytest.mark.parametrize(
    "name", [pytest.param(fault, marks=() if fault in OF_EACH_RUN else pytest.mark.nightly) for fault in FAULTS]
)
def test_a_job_starts_restarts_and_scales_although(
    name: str, ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    server.fault = FAULTS[name]
    submit(replicas=2)
    live(ns)
    assert operator.probe("/healthz") == 200


def test_retry_after_is_respected(
    ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    creates: list[Request] = []

    def busy(request: Request) -> Fault | None:
        if request.method != "POST" or not request.path.endswith("/pods") or "dryRun" in request.query:
            return None
        creates.append(request)
        return Answer(429, "TooManyRequests", {"Retry-After": "2"}) if len(creates) == 1 else None

    server.fault = busy
    submit(replicas=1)
    eventually(lambda: len(creates) == 2, what="tried again")
    assert operator.returncode is None
    eventually(lambda: len(ns.workers()) == 1, what="one worker")
    eventually(lambda: "elasticjob_pods_created_total 1.0" in operator.metrics(), what="one created")
    assert 'code="429",resource="pods",verb="create"} 1.0' in operator.metrics()


def test_a_job_starts_restarts_and_scales_while_watches_are_cut(
    ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    stop = threading.Event()

    def cut() -> None:
        while not stop.wait(0.2):
            server.cut_watches()

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        submit(replicas=2)
        live(ns)
    finally:
        stop.set()
        thread.join()
    assert operator.probe("/healthz") == 200


def test_a_rejected_watch_of_jobs_does_not_stop_the_operator(
    ns: Namespace, server: FaultyServer, operator: Operator, submit: Callable[..., str]
) -> None:
    """Not within a watch that stands, as above, but instead of it: what kopf takes for the end of the world."""
    submit(replicas=2)
    submit("removed", replicas=1)
    eventually(lambda: len(ns.workers()) == 3, what="three workers", timeout=60)
    server.fault = lambda request: (
        Answer(410, "Expired") if request.is_watch and "elasticjobs" in request.path else None
    )
    before = len(server.requests)
    server.cut_watches()
    eventually(lambda: refused(server, before) >= 2, what="refused, and asked again", timeout=60)
    ns.delete("elasticjobs", "removed")
    server.fault = lambda _: None
    ns.scale("digits", 3)
    names = {f"digits-worker-{index}" for index in range(3)}
    eventually(lambda: names <= set(ns.workers()), what="news of jobs come again", timeout=60)
    eventually(lambda: "restarting it" in operator.log_text(), what="the log says so")
    assert operator.returncode is None, "the same process"
    assert operator.probe("/healthz") == 200
    assert operator.stop() == 0


def refused(server: FaultyServer, since: int) -> int:
    return len([request for request in server.requests[since:] if request.is_watch and "elasticjobs" in request.path])


def is_back(ns: Namespace) -> bool:
    try:
        return bool(ns.job("digits"))
    except (OSError, ApiStatusError):
        return False


def test_the_operator_survives_a_restart_of_the_api_server(tmp_path: Path) -> None:
    """With its own data, on its own port: what an upgrade of a control plane looks like."""
    control_plane = ControlPlane(tmp_path / "control-plane", controllers=["garbage-collector-controller"])
    with control_plane:
        install_crd(control_plane)
        kube = Kube(control_plane.kubeconfig)
        kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": "afresh"}})
        ns = Namespace(kube, "afresh")
        operator = Operator(control_plane.kubeconfig, ns.name, tmp_path / "operator.log")
        operator.start()
        try:
            workers = {"replicas": 2, "minReplicas": 1, "maxReplicas": 4, "template": TEMPLATE}
            kind = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob"}
            ns.create("elasticjobs", {**kind, "metadata": {"name": "digits"}, "spec": {"workers": workers}})
            eventually(lambda: len(ns.workers()) == 2, what="two workers")
            (server,) = [child for child in control_plane.children if child.name == "kube-apiserver"]
            server.stop()
            port, etcd_port = kube.server.port, control_plane.etcd_endpoint.rpartition(":")[2]
            assert port
            flags = components.api_server(control_plane.directory, port, int(etcd_port), control_plane._server_flags())
            control_plane._start_child(flags)
            eventually(lambda: is_back(ns), what="it answers again", timeout=60)
            ns.delete("pods", "digits-worker-0")
            ns.scale("digits", 3)
            eventually(
                lambda: set(ns.workers()) == {f"digits-worker-{index}" for index in range(3)},
                what="three workers",
                timeout=150,
            )
            assert operator.probe("/healthz") == 200
        finally:
            operator.close()
            print(operator.log_text())
