"""An ElasticJob on a real cluster, seen through kubectl."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import yaml
from elasticjob_operator.names import LABEL_INDEX, worker_selector

from hack.drivers import ClusterDriver, KubeError, adapt
from hack.images.recipe import ROOT
from hack.support import eventually

MANIFEST = ROOT / "examples" / "digits" / "elasticjob.yaml"

ARGUMENTS = ("--steps=20000", "--step-seconds=0.1", "--checkpoint-every=5", "--print-every=5")
"""Arguments of the script: it trains for longer than any test."""

COUNTING = (
    "sh",
    "-c",
    'printf %s "$0" > /tmp/counting.py && exec elasticrun --start-method=spawn /tmp/counting.py',
    (ROOT / "tests" / "e2e" / "counting.py").read_text(encoding="utf-8"),
)
"""A command that trains for longer than any test, without the seconds that torch takes to start."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What any interruption of the training changes: if two of these are equal, nothing interrupted it in between."""

    pods: frozenset[tuple[str, str, int]]
    """Name, uid and container restarts of every worker pod."""
    round: int
    starts: int
    """How often rank 0 started training or resumed it from a checkpoint."""
    restarts: int


def worker_pod(cluster: ClusterDriver, job: str, index: int, namespace: str = "default") -> dict[str, Any]:
    """The newest worker pod of that index."""
    found = cluster.kubectl.items("pods", namespace, f"{worker_selector(job)},{LABEL_INDEX}={index}")
    return max(
        found, key=lambda pod: ("deletionTimestamp" not in pod["metadata"], pod["metadata"]["creationTimestamp"])
    )


class Job:
    """The digits example under another name, with other sizes and arguments."""

    def __init__(
        self,
        cluster: ClusterDriver,
        name: str,
        *,
        replicas: int = 2,
        least: int = 1,
        most: int = 4,
        arguments: tuple[str, ...] = ARGUMENTS,
        command: tuple[str, ...] | None = None,
        max_restarts: int = 3,
        edit: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`edit`: changes the finished manifest."""
        self._cluster = cluster
        self.name = name
        manifest = yaml.safe_load(adapt(MANIFEST.read_text(encoding="utf-8"), cluster))
        manifest["metadata"]["name"] = name
        workers = manifest["spec"]["workers"]
        workers.update(replicas=replicas, minReplicas=least, maxReplicas=most)
        manifest["spec"]["failurePolicy"] = {"maxRestarts": max_restarts}
        container = workers["template"]["spec"]["containers"][0]
        container["args"] = [*container["args"], *arguments]
        if command is not None:
            container["command"], container["args"] = list(command), []
        if edit is not None:
            edit(manifest)
        self.manifest = manifest

    def apply(self) -> None:
        self._cluster.kubectl.apply(yaml.safe_dump(self.manifest))

    def delete(self) -> None:
        self._cluster.kubectl.delete("elasticjob", self.name, timeout=120)

    def scale(self, replicas: int) -> None:
        self._cluster.kubectl.run("scale", "elasticjob", self.name, f"--replicas={replicas}")

    @property
    def exists(self) -> bool:
        names = [job["metadata"]["name"] for job in self._cluster.kubectl.items("elasticjobs")]
        return self.name in names

    def suspend(self, suspended: bool) -> None:
        patch = json.dumps({"spec": {"suspend": suspended}})
        self._cluster.kubectl.run("patch", "elasticjob", self.name, "--type=merge", f"--patch={patch}")

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._cluster.kubectl.get("elasticjob", self.name).get("status", {})
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = self.status.get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def is_true(self, kind: str) -> bool:
        return self.condition(kind).get("status") == "True"

    @property
    def events(self) -> list[str]:
        """Messages of this job's events, without those of an earlier job of the same name."""
        uid = self._cluster.kubectl.get("elasticjob", self.name)["metadata"]["uid"]
        return [
            event["message"]
            for event in self._cluster.kubectl.items("events")
            if event["involvedObject"].get("uid") == uid
        ]

    @property
    def step(self) -> int:
        return int(self.status.get("progress", {}).get("step", 0))

    @property
    def restarts(self) -> int:
        return int(self.status.get("restarts", {}).get("total", 0))

    @property
    def selector(self) -> str:
        return worker_selector(self.name)

    @property
    def pods(self) -> list[dict[str, Any]]:
        return self._cluster.kubectl.items("pods", selector=self.selector)

    def worker(self, index: int) -> str:
        """Name of its worker pod of that index."""
        return str(worker_pod(self._cluster, self.name, index)["metadata"]["name"])

    def pod_of_rank_zero(self) -> str:
        """The pod whose log has rank 0's last line."""
        return max((str(pod["metadata"]["name"]) for pod in self.pods), key=self.last_step)

    def steps(self, pod: str, *words: str) -> list[int]:
        """The steps in the pod's log, in order, or none if it does not run yet. `words`: options of `kubectl logs`."""
        try:
            lines = self._cluster.kubectl.logs(pod, *words).splitlines()
        except KubeError:
            return []
        return [int(line.split("step=")[1].split()[0]) for line in lines if line.startswith("step=")]

    def last_step(self, pod: str) -> int:
        """The highest step in the pod's log, or -1."""
        return max(self.steps(pod, "--tail=200"), default=-1)

    @property
    def snapshot(self) -> Snapshot:
        pods = self.pods
        logs = [self._cluster.kubectl.logs(pod["metadata"]["name"]) for pod in pods]
        return Snapshot(
            pods=frozenset(
                (pod["metadata"]["name"], pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
                for pod in pods
            ),
            round=int(self.status["round"]),
            starts=sum(line.startswith(("started ", "resumed ")) for log in logs for line in log.splitlines()),
            restarts=self.restarts,
        )

    def trains(self, world: int, timeout: float = 120) -> int:
        """Waits until `world` worker processes train and the step advances. Returns that step."""

        def at_size() -> bool:
            status = self.status
            assert status.get("worldSize") == world, json.dumps(status)[:2000]
            return True

        eventually(at_size, timeout, 0.3, f"{self.name} trains with {world} workers")
        before = self.step
        eventually(lambda: self.step > before, timeout, 0.3, f"{self.name} continues after step {before}")
        return self.step

    def leftovers(self) -> list[str]:
        """Names of all objects in the namespace that still belong to the job."""
        kinds = "pods,services,statefulsets,configmaps,secrets,persistentvolumeclaims,networkpolicies"
        listed = self._cluster.kubectl.run("get", kinds, "--output", "name").split()
        return [line for line in listed if line.partition("/")[2].startswith(self.name)]
