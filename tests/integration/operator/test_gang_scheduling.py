"""Two jobs that want the same nodes, with schedulers that have gangs: Kubernetes' own, and that of scheduler-plugins.
The nodes have no kubelets."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.cluster import components
from hack.cluster.coscheduling import SCHEDULER, podgroup_crd, scheduler, write_configuration
from hack.cluster.loopback import ControlPlane
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child
from hack.support import eventually
from tests.integration.operator.kube import Json, Kube, Namespace
from tests.integration.operator.optional_crds import installed
from tests.integration.operator.shared import running

LONG = 120.0


@pytest.fixture(
    scope="module",
    params=["Native", pytest.param("Coscheduling", marks=pytest.mark.nightly)],  # the latter is built in minutes
)
def provider(
    request: pytest.FixtureRequest,
    kube: Kube,
    control_plane_server: ControlPlane,
    control_plane: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The gang that a job names, while its scheduler and an operator run."""
    assert kube  # with the CRD of ElasticJobs
    folder = tmp_path_factory.mktemp("scheduler")
    native = request.param == "Native"
    command = components.scheduler(control_plane) if native else _coscheduling(folder, control_plane)
    (port,) = free_ports(1)
    with contextlib.nullcontext() if native else installed(control_plane_server, podgroup_crd()):
        child = Child([*command, "--bind-address=127.0.0.1", f"--secure-port={port}"], folder / "scheduler.log")
        try:
            with running(control_plane, folder):
                yield request.param
        finally:
            child.stop(grace=0)
    print(f"--- log of the scheduler\n{child.log.read_text()[-9000:]}")


def _coscheduling(folder: Path, kubeconfig: Path) -> list[str]:
    configuration = write_configuration(folder / "scheduler.yaml", kubeconfig)
    return [str(scheduler()), f"--config={configuration}"]


@pytest.fixture
def pool(ns: Namespace) -> Iterator[dict[str, str]]:
    """Two nodes with room for two worker pods each. Returns a label that only they have."""
    label = {"pool": ns.name}
    names = [f"node-{uuid.uuid4().hex[:6]}" for _ in range(2)]
    room = {"cpu": "2", "memory": "8Gi", "pods": "110"}
    for name in names:
        ns.add_node(name)
        ns.label_node(name, label)
        merge = "application/merge-patch+json"
        # The API server taints a new node, and the controller that would find it ready is not here.
        ns.kube.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, merge)
        status = {"status": {"capacity": room, "allocatable": room}}
        ns.kube.call("PATCH", f"/api/v1/nodes/{name}/status", status, merge)
    yield label
    for name in names:
        ns.remove_node(name)


def template(pool: dict[str, str], provider: str) -> Json:
    name = SCHEDULER if provider == "Coscheduling" else "default-scheduler"
    container = {"name": "trainer", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    return {"spec": {"schedulerName": name, "nodeSelector": pool, "containers": [container]}}


def placed(ns: Namespace, job: str) -> list[str]:
    """Nodes of the worker pods that have one."""
    pods = [pod for name, pod in ns.workers().items() if name.startswith(f"{job}-worker-")]
    return [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]


def test_of_two_jobs_that_want_the_same_nodes_one_runs_then_the_other(
    ns: Namespace, provider: str, pool: dict[str, str], submit: Callable[..., str]
) -> None:
    """Without gangs, each could take two of the four places and wait for a third one forever."""
    gang = {"scheduling": {"gang": {"provider": provider}}}
    for name in ("first", "second"):
        submit(name, replicas=3, minReplicas=3, template=template(pool, provider), spec=gang)
    eventually(lambda: len(ns.workers()) == 6, LONG, what="all worker pods are created")

    def winner() -> str:
        counts = {name: len(placed(ns, name)) for name in ("first", "second")}
        assert sorted(counts.values()) != [2, 2], "each has half"
        return next((name for name, count in counts.items() if count == 3), "")

    one = eventually(winner, LONG, what="all worker pods of one job have nodes")
    assert one
    other = {"first": "second", "second": "first"}[one]
    assert placed(ns, other) == []
    waits = eventually(
        lambda: (found := ns.condition(other, "Running")).get("reason") == "Unschedulable" and found,
        LONG,
        what="the other one says what it waits for",
    )
    assert waits

    ns.delete("elasticjobs", one)
    for name, pod in ns.workers().items():
        if name.startswith(f"{one}-worker-"):
            ns.delete("pods", pod["metadata"]["name"], gracePeriodSeconds=0)
    eventually(lambda: len(placed(ns, other)) == 3, LONG, what="the other one gets all its nodes")
