"""One job on the cluster while faults hit it: where everything runs, and whether the job has recovered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hack.chaos import processes
from hack.chaos.job import NAMESPACE, ChaosJob
from hack.chaos.ledger import Group, groups_of
from hack.cluster import KUBECONFIG
from hack.cluster.nodes import ready_nodes
from hack.drivers import ClusterDriver, KubeError, NodePower
from hack.drivers.install import NAMESPACE as OPERATOR_NAMESPACE
from hack.drivers.install import RELEASE
from hack.support import eventually

OPERATORS = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=operator"
FRESH = 5.0
"""A group whose last step is older than this is not training, in seconds."""
STEADY = 10
"""Steps that a group completes before the next fault may hit it."""


class Scene:
    """What faults act on."""

    def __init__(self, driver: ClusterDriver, job: ChaosJob) -> None:
        assert driver.power is not None
        self.driver = driver
        self.job = job
        self.power: NodePower = driver.power

    def groups(self) -> list[Group]:
        return groups_of(self.job.ledger())

    def newest(self) -> Group:
        """Raises LookupError if no group has begun."""
        groups = self.groups()
        if not groups:
            raise LookupError("no group has begun")
        return max(groups, key=lambda group: group.order)

    def uid(self, pod: str) -> str:
        """Raises KubeError if there is no such pod."""
        return str(self.job.pod(pod)["metadata"]["uid"])

    def node(self, pod: str) -> str:
        return str(self.job.pod(pod)["spec"]["nodeName"])

    def agent(self, index: int) -> processes.PodProcess:
        return processes.first_process(self.uid(self.job.worker(index)), "agent", lambda command: "elastic" in command)

    def sidecar(self, index: int) -> processes.PodProcess:
        return processes.first_process(self.uid(self.job.worker(index)), "sidecar", lambda command: "sleep" in command)

    def worker(self, index: int) -> processes.PodProcess:
        """The worker process of that member in the newest group. Raises LookupError."""
        name = self.job.worker(index)
        newest = self.newest()
        wanted = next((process.process for process in newest.processes if process.member == name), None)
        for found in processes.processes_of(self.uid(name)):
            if found.inside == wanted:
                return found
        raise LookupError(f"no worker of {newest.name} runs in {name}")

    def etcd(self) -> processes.PodProcess:
        return processes.first_process(self.uid(self.job.etcd), "etcd", lambda command: command.startswith("etcd"))

    def kill_operator(self) -> None:
        """Deletes the operator's pod by force; its Deployment creates another."""
        where = ("--selector", OPERATORS, "--namespace", OPERATOR_NAMESPACE)
        self.driver.kubectl.run("delete", "pods", *where, "--force", "--grace-period=0", "--wait=false")

    def problem(self) -> str:
        """Why the job is not healthy, or an empty string. It is healthy if the wanted number of pods is running, the
        newest group has that size and trains, and the status says so."""
        try:
            newest, wanted = self.newest(), self.job.wanted
        except LookupError as error:
            return str(error)
        if newest.world != wanted:
            return f"{newest.name} is not of {wanted}"
        if len(newest.done) < STEADY or newest.last_done < time.monotonic() - FRESH:
            return (
                f"{newest.name} has done {len(newest.done)} steps, the last "
                f"{time.monotonic() - newest.last_done:.1f} s ago"
            )
        pods = [pod for pod in self.job.pods() if "deletionTimestamp" not in pod["metadata"]]
        if [pod["status"].get("phase") for pod in pods] != ["Running"] * wanted:
            return f"pods: {[(pod['metadata']['name'], pod['status'].get('phase')) for pod in pods]}"
        if self.job.status.get("worldSize") != wanted:
            return f"the status says worldSize {self.job.status.get('worldSize')}"
        return ""

    def becomes_healthy(self, limit: float) -> str:
        """Waits until the job is healthy. Returns the problem that is left after `limit` seconds."""
        end = time.monotonic() + limit
        while True:
            try:
                wrong = self.problem()
            except KubeError as error:
                wrong = str(error)
            if not wrong or time.monotonic() > end:
                return wrong
            time.sleep(0.5)

    def misplaced(self) -> str:
        """How the placement of the workers differs from the layout, or an empty string."""
        here, wanted = (
            sorted(str(pod["spec"].get("nodeName")) for pod in self.job.pods()),
            sorted(self.job.layout.workers),
        )
        return "" if here == wanted else f"workers are on {here}, not on {wanted}"

    def arrange(self) -> None:
        """Moves etcd and operator to where the layout wants them. Raises AssertionError."""
        layout = self.job.layout
        eventually(lambda: len(ready_nodes(KUBECONFIG)) >= 3, 60, 0.5, "all nodes are Ready")
        if [pod["spec"].get("nodeName") for pod in self._operators()] != [layout.operator]:
            self._move(layout.operator, self.kill_operator, lambda: _all_on(layout.operator, self._operators()))
        if self.node(self.job.etcd) != layout.etcd:
            self._move(
                layout.etcd,
                lambda: self.job.delete_pods([self.job.etcd], force=True),
                lambda: _all_on(layout.etcd, self._etcds()),
            )

    def _move(self, node: str, let_go: Callable[[], None], there: Callable[[], bool]) -> None:
        with only_node(self.driver, node):
            let_go()
            eventually(there, 90, 0.5, f"it runs on {node}")

    def _operators(self) -> list[dict[str, Any]]:
        return self.driver.kubectl.items("pods", OPERATOR_NAMESPACE, OPERATORS)

    def _etcds(self) -> list[dict[str, Any]]:
        return [pod for pod in self.driver.kubectl.items("pods", NAMESPACE) if pod["metadata"]["name"] == self.job.etcd]


@contextlib.contextmanager
def only_node(driver: ClusterDriver, node: str) -> Iterator[None]:
    """Schedules new pods on this node only."""
    others = [item["metadata"]["name"] for item in driver.kubectl.items("nodes") if item["metadata"]["name"] != node]
    driver.kubectl.run("cordon", *others)
    try:
        yield
    finally:
        driver.kubectl.run("uncordon", *others)


def _all_on(node: str, pods: Sequence[dict[str, Any]]) -> bool:
    """One pod, which is ready."""
    return [pod["spec"].get("nodeName") for pod in pods] == [node] and all(map(_is_ready, pods))


def _is_ready(pod: dict[str, Any]) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod["status"].get("conditions", [])
    )
