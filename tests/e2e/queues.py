"""A queue of Kueue with what competes for its quota: a ClusterQueue, its flavor and LocalQueue, two priorities, and
batch Jobs."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from elasticjob_operator.names import LABEL_WORKLOAD

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import Job

Json = dict[str, Any]

API = "kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
PRIORITIES = {"high": 1000, "normal": 100}
WORKER_CPU = 100
"""What a worker pod requests of these tests' quota, in thousandths of a CPU. The job's etcd requests half of it."""

ETCD_CPU = 50
BASE = 2 * WORKER_CPU + ETCD_CPU
"""What the base of a job with minReplicas 2 takes of the quota."""
QUOTA = BASE + 2 * WORKER_CPU


def condition(workload: Json, kind: str) -> Json:
    conditions = workload.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


def holds(workload: Json, kind: str) -> bool:
    return bool(condition(workload, kind).get("status") == "True")


class Queue:
    """Everything carries the queue's name. `delete` removes it all; jobs must be gone before."""

    def __init__(self, cluster: ClusterDriver, name: str) -> None:
        self._kubectl = cluster.kubectl
        self.name = name

    def create(self, cpu: int) -> None:
        """`cpu`: the quota, in thousandths of a CPU."""
        classes = [
            {**_head("WorkloadPriorityClass", self.priority(level)), "value": value}
            for level, value in PRIORITIES.items()
        ]
        local = {**_head("LocalQueue", self.name), "spec": {"clusterQueue": self.name}}
        self._apply({**_head("ResourceFlavor", self.name), "spec": {}}, *classes, local)
        self.edit(cpu)
        self._kubectl.wait(f"clusterqueue.kueue.x-k8s.io/{self.name}", "condition=Active")

    def edit(self, cpu: int | dict[str, int], stop: str = "None", checks: Sequence[str] = ()) -> None:
        """`cpu`: the quota of the queue's own flavor, or of these flavors, in thousandths of a CPU.
        `stop`: the ClusterQueue's stopPolicy. `checks`: names of AdmissionChecks."""
        quotas = cpu if isinstance(cpu, dict) else {self.name: cpu}
        flavors = []
        for name, value in quotas.items():
            quota = {"cpu": f"{value}m", "memory": "64Gi"}
            resources = [{"name": resource, "nominalQuota": nominal} for resource, nominal in quota.items()]
            flavors.append({"name": name, "resources": resources})
        spec: Json = {
            "namespaceSelector": {},
            "stopPolicy": stop,
            "preemption": {"withinClusterQueue": "LowerPriority"},  # by default nothing is given back
            "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": flavors}],
        }
        if checks:
            spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
        self._apply({**_head("ClusterQueue", self.name), "spec": spec})

    def add_flavor(self, name: str, labels: dict[str, str], **spec: str) -> None:
        """Of nodes with these labels."""
        self._apply({**_head("ResourceFlavor", name), "spec": {"nodeLabels": labels, **spec}})

    def remove(self, kind: str, name: str) -> None:
        """An object of Kueue's. Does nothing if it is gone."""
        self._kubectl.run("delete", f"{kind}.kueue.x-k8s.io", name, "--ignore-not-found", "--timeout=60s")

    def delete(self) -> None:
        for kind in ("localqueue", "clusterqueue", "resourceflavor"):
            self.remove(kind, self.name)
        for level in PRIORITIES:
            self.remove("workloadpriorityclass", self.priority(level))

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
        return {item["metadata"]["name"]: item for item in found if _owner(item) == ("ElasticJob", job)}

    def pods_of(self, workload: str) -> list[str]:
        """Names of the worker pods that were admitted with it."""
        pods = self._kubectl.items("pods", selector=f"{LABEL_WORKLOAD}={workload}")
        return sorted(pod["metadata"]["name"] for pod in pods)

    def admitted(self, job: str) -> int:
        """How many of its Workloads are admitted, and not evicted."""
        found = self.workloads(job).values()
        return sum(holds(item, "Admitted") and not holds(item, "Evicted") for item in found)

    def left_nothing(self, job: str) -> Callable[[], bool]:
        """For `eventually`: no Workload of the job is left."""
        return lambda: not self.workloads(job)

    def workload(self, name: str) -> Json:
        return self._kubectl.get("workload.kueue.x-k8s.io", name)

    def patch_workload(self, name: str, patch: str, subresource: str = "") -> None:
        part = [f"--subresource={subresource}"] if subresource else []
        self._kubectl.run("patch", "workload.kueue.x-k8s.io", name, "--type=merge", f"--patch={patch}", *part)

    def _apply(self, *objects: Json) -> None:
        eventually(lambda: self._kubectl.apply(yaml.safe_dump_all(objects)))


class Watch:
    """Notes when Workloads of a job are evicted and when their quota is free, as the API server tells it. A context
    manager.

    `evicted`, `free`: Workload -> since when (monotonic, s).
    """

    def __init__(self, cluster: ClusterDriver, job: str) -> None:
        words = ("get", "workloads.kueue.x-k8s.io", "--watch", "--output=json")
        self._command, self._job = cluster.kubectl.command(*words), job
        self.evicted: dict[str, float] = {}
        self.free: dict[str, float] = {}

    def __enter__(self) -> Watch:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._thread.join()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout
        text = ""
        for line in self._process.stdout:
            text += line
            if line == "}\n":
                self._take(json.loads(text))
                text = ""

    def _take(self, workload: Json) -> None:
        name, now = workload["metadata"]["name"], time.monotonic()
        if _owner(workload) != ("ElasticJob", self._job):
            return
        if holds(workload, "Evicted"):
            self.evicted.setdefault(name, now)
        if name in self.evicted and not holds(workload, "QuotaReserved"):
            self.free.setdefault(name, now)


def waits(job: Job, reason: str, *words: str) -> None:
    """Waits until the condition Queued has this reason, and a message with these words."""

    def says() -> bool:
        queued = job.condition("Queued")
        assert queued.get("reason") == reason, job.status.get("conditions")
        assert all(word in queued["message"] for word in words), queued
        return True

    eventually(says, 60, 0.3, f"{job.name} is queued: {reason}")


def _head(kind: str, name: str) -> Json:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}}


def _owner(workload: Json) -> tuple[str, str]:
    owners = workload["metadata"].get("ownerReferences") or [{"kind": "", "name": ""}]
    return owners[0]["kind"], owners[0]["name"]
