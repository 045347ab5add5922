"""A queue of Kueue with what competes for its quota: a ClusterQueue, its flavor and LocalQueue, two priorities, and
batch Jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import yaml
from elasticjob_operator.names import LABEL_WORKLOAD

from hack.drivers import ClusterDriver
from hack.support import eventually

Json = dict[str, Any]

API = "kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
PRIORITIES = {"high": 1000, "normal": 100}
WORKER_CPU = 100
"""What a worker pod requests of these tests' quota, in thousandths of a CPU. The job's etcd requests half of it."""


def condition(workload: Json, kind: str) -> Json:
    conditions = workload.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def holds(workload: Json, kind: str) -> bool:
    return bool(condition(workload, kind).get("status") == "True")


class Queue:
    """Everything carries the queue's name. `delete` removes it all; jobs must be gone before."""

    def __init__(self, cluster: ClusterDriver, name: str) -> None:
        self._kubectl = cluster.kubectl
        self.name = name

    def create(self, cpu: int, covered: Sequence[str] = ("cpu", "memory")) -> None:
        """`cpu`: the quota, in thousandths of a CPU."""
        classes = [
            {**_head("WorkloadPriorityClass", self.priority(level)), "value": value}
            for level, value in PRIORITIES.items()
        ]
        local = {**_head("LocalQueue", self.name), "spec": {"clusterQueue": self.name}}
        self._apply({**_head("ResourceFlavor", self.name), "spec": {}}, *classes, local)
        self.edit(cpu, covered=covered)
        self._kubectl.wait(f"clusterqueue.kueue.x-k8s.io/{self.name}", "condition=Active")

    def edit(self, cpu: int, stop: str = "None", covered: Sequence[str] = ("cpu", "memory")) -> None:
        """`stop`: the ClusterQueue's stopPolicy."""
        quota = {"cpu": f"{cpu}m", "memory": "64Gi"}
        resources = [{"name": name, "nominalQuota": quota[name]} for name in covered]
        spec = {
            "namespaceSelector": {},
            "stopPolicy": stop,
            "preemption": {"withinClusterQueue": "LowerPriority"},  # by default nothing is given back
            "resourceGroups": [
                {"coveredResources": list(covered), "flavors": [{"name": self.name, "resources": resources}]}
            ],
        }
        self._apply({**_head("ClusterQueue", self.name), "spec": spec})

    def delete(self) -> None:
        for kind, names in (
            ("localqueue", [self.name]),
            ("clusterqueue", [self.name]),
            ("resourceflavor", [self.name]),
            ("workloadpriorityclass", [self.priority(level) for level in PRIORITIES]),
        ):
            self._kubectl.run("delete", f"{kind}.kueue.x-k8s.io", *names, "--ignore-not-found", "--timeout=60s")

    def priority(self, level: str) -> str:
        """Name of the priority class."""
        return f"{self.name}-{level}"

    def label(self, job: Json) -> None:
        """Puts an ElasticJob's manifest into the queue."""
        job["metadata"]["labels"] = {QUEUE_LABEL: self.name, PRIORITY_LABEL: self.priority("normal")}

    def start(self, name: str, cpu: int, level: str = "high") -> None:
        """A batch Job that runs until `end`."""
        container = {
            "name": "pause",
            "image": "localhost/pause:1",
            "imagePullPolicy": "Never",
            "resources": {"requests": {"cpu": f"{cpu}m", "memory": "8Mi"}},
        }
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
        labels = {QUEUE_LABEL: self.name, PRIORITY_LABEL: self.priority(level)}
        self._apply(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "labels": labels},
                "spec": {"suspend": True, "template": {"spec": pod}},
            }
        )

    def runs(self, name: str) -> bool:
        """Whether the batch Job's pod is ready."""
        return bool(self._kubectl.get("job", name)["status"].get("ready"))

    def end(self, name: str) -> None:
        self._kubectl.delete("job", name)

    def workloads(self, job: str) -> dict[str, Json]:
        """The Workloads that an ElasticJob owns, by name."""
        found = self._kubectl.items("workloads.kueue.x-k8s.io")
        return {each["metadata"]["name"]: each for each in found if _owner(each) == ("ElasticJob", job)}

    def pods_of(self, workload: str) -> list[str]:
        """Names of the worker pods that were admitted with it."""
        pods = self._kubectl.items("pods", selector=f"{LABEL_WORKLOAD}={workload}")
        return sorted(pod["metadata"]["name"] for pod in pods)

    def admitted(self, job: str) -> int:
        """How many of its Workloads are admitted, and not evicted."""
        found = self.workloads(job).values()
        return sum(holds(each, "Admitted") and not holds(each, "Evicted") for each in found)

    def left_nothing(self, job: str) -> Callable[[], bool]:
        """For `eventually`: no Workload of the job is left."""
        return lambda: not self.workloads(job)

    def patch_workload(self, name: str, patch: str) -> None:
        self._kubectl.run("patch", "workload.kueue.x-k8s.io", name, "--type=merge", f"--patch={patch}")

    def _apply(self, *objects: Json) -> None:
        eventually(lambda: self._kubectl.apply(yaml.safe_dump_all(objects)))


def _head(kind: str, name: str) -> Json:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}}


def _owner(workload: Json) -> tuple[str, str]:
    owners = workload["metadata"].get("ownerReferences") or [{"kind": "", "name": ""}]
    return owners[0]["kind"], owners[0]["name"]
