"""A namespace and an operator process of its own for every test; the test plays users, kubelets and agents."""

from __future__ import annotations

import contextlib
import datetime
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.loopback import ControlPlane, Etcd
from hack.support import eventually
from tests.integration.operator.faulty import FaultyServer
from tests.integration.operator.kube import Kube, Namespace
from tests.integration.operator.process import Gate, Operator, changed_kubeconfig
from tests.integration.operator.rendezvous import Agents

CRDS = Path(__file__).parents[3] / "crds"

TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "trainer", "image": "none"}]}}


@pytest.fixture(scope="session")
def kube(control_plane_server: ControlPlane) -> Kube:
    """With the CRD installed."""
    install_crd(control_plane_server)
    return Kube(control_plane_server.kubeconfig)


def install_crd(server: ControlPlane) -> None:
    """`kubectl wait` ends with an error where an object has no conditions yet."""
    server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))

    def established() -> bool:
        crds = json.loads(server.kubectl("get", "crd", *(path.stem for path in CRDS.iterdir()), "--output=json"))
        conditions = [crd.get("status", {}).get("conditions") or [] for crd in crds["items"]]
        return all(
            any((condition["type"], condition["status"]) == ("Established", "True") for condition in of)
            for of in conditions
        )

    eventually(established, what="the CRDs are established")
    server.kubectl("get", "elasticjobs,elasticjobprogresses", "--all-namespaces")  # waits until they are served


@pytest.fixture
def ns(kube: Kube) -> Iterator[Namespace]:
    with namespace(kube) as made:
        yield made


@contextlib.contextmanager
def namespace(kube: Kube) -> Iterator[Namespace]:
    name = f"op-{uuid.uuid4().hex[:8]}"
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield Namespace(kube, name)
    kube.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def start_operator(
    ns: Namespace, control_plane: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Operator]]:
    """Starts one with these settings in its environment. Its log is printed when the test fails."""
    operators: list[Operator] = []

    def start(kubeconfig: Path = control_plane, **environment: str) -> Operator:
        operator = Operator(kubeconfig, ns.name, tmp_path / f"operator-{len(operators)}.log", **environment)
        operators.append(operator)
        operator.start()
        return operator

    yield start
    for operator in operators:
        operator.close()
        print(f"--- log of the operator of {request.node.name}: {operator.log}\n{operator.log_text()}")


@pytest.fixture
def gate(ns: Namespace) -> Iterator[Gate]:
    """In front of the API server; open."""
    gate = Gate(ns.kube.server)
    gate.open()
    yield gate
    gate.shut()


@pytest.fixture
def gated(gate: Gate, control_plane: Path, tmp_path: Path) -> Path:
    """A kubeconfig that leads through the gate."""
    return changed_kubeconfig(control_plane, tmp_path / "gate.conf", server=gate.url)


@pytest.fixture
def server(control_plane: Path) -> Iterator[FaultyServer]:
    with FaultyServer(control_plane) as server:
        yield server


@pytest.fixture
def endpoint(etcd_server: Etcd) -> str:
    """host:port of the etcd that the jobs of a test use."""
    return etcd_server.endpoint.removeprefix("http://")


@pytest.fixture
def operator(start_operator: Callable[..., Operator]) -> Operator:
    return start_operator()


@pytest.fixture
def submit(ns: Namespace, endpoint: str) -> Callable[..., str]:
    """Creates an ElasticJob and returns its name. Its etcd is the test's, but for endpoint=""."""

    def create(
        name: str = "digits",
        endpoint: str = endpoint,
        replicas: int = 2,
        spec: dict[str, Any] | None = None,
        **workers: Any,
    ) -> str:
        body = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name},
            "spec": {
                "workers": {"replicas": replicas, "minReplicas": 1, "maxReplicas": 8, "template": TEMPLATE, **workers},
                "rendezvous": {"type": "External", "endpoint": endpoint} if endpoint else {},
                **(spec or {}),
            },
        }
        ns.create("elasticjobs", body)
        return name

    return create


@pytest.fixture
def agents_of(ns: Namespace, endpoint: str) -> Iterator[Callable[[str], Agents]]:
    """The agents of a job, once the operator says under which id they meet."""
    made: list[Agents] = []

    def connect(job: str, endpoint: str = endpoint) -> Agents:
        run_id = eventually(lambda: ns.status(job).get("rendezvous", {}).get("id"), what="status.rendezvous.id")
        agents = Agents(endpoint, run_id)
        made.append(agents)
        return agents

    yield connect
    for agents in made:
        agents.close()


@pytest.fixture
def training(
    ns: Namespace, submit: Callable[..., str], agents_of: Callable[[str], Agents], operator: Operator
) -> Callable[..., Agents]:
    """A job that trains: pods run, the agents have a plan, status says Running."""

    def start(replicas: int = 2, node: str = "", **job: Any) -> Agents:
        assert operator
        name = submit(replicas=replicas, **job)
        eventually(lambda: len(ns.workers()) == replicas, what="all worker pods are there")
        for pod in ns.workers():
            ns.run(pod, node)
        agents = agents_of(name)
        agents.plan(1, size=replicas)
        eventually(lambda: ns.is_true(name, "Running"), what="Running")
        return agents

    return start


def rfc3339(seconds: float = 0) -> str:
    """Now, and `seconds` later."""
    moment = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
