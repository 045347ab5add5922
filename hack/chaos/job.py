"""The job under test: its manifest, its observed state, and changes made with kubectl."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from elasticjob_operator.names import LABEL_INDEX, worker_host, worker_selector

from hack.chaos.ledger import SAMPLES, LedgerReader, Process
from hack.cluster import SHARED_DIRECTORY
from hack.drivers import ClusterDriver, adapt
from hack.images.recipe import ROOT

MANIFEST = ROOT / "examples" / "digits" / "elasticjob.yaml"
HERE = Path(__file__).parent
NAMESPACE = "default"
MAX_RESTARTS = 50
_FOLDER = "$(ELASTICJOB_CHECKPOINT_DIRECTORY)/$(ELASTICJOB_UID)"


@dataclass(frozen=True)
class Layout:
    """Where everything runs: the suite moves pods there before a fault."""

    workers: tuple[str, ...]
    """Nodes, one worker pod each; a node may occur twice."""
    etcd: str
    operator: str
    small_disk: bool = False
    """Checkpoints are on an 8 MiB disk of the pod."""
    on_partition: str = ""
    """spec.rendezvous.onPartition; empty: not set."""
    fast_clock: bool = False
    """The clock of the last worker pod is an hour fast."""


SPREAD = Layout(workers=("node-1", "node-2", "node-3"), etcd="node-2", operator="node-1")


@dataclass(frozen=True)
class Seen:
    """The job's status, and when it arrived (s, monotonic)."""

    at: float
    status: dict[str, Any]

    def condition(self, kind: str) -> dict[str, Any]:
        return next((condition for condition in self.status.get("conditions", []) if condition["type"] == kind), {})


class ChaosJob:
    """One ElasticJob with the ledger. A context manager: applies the job, and in the end deletes it and its folder."""

    def __init__(self, driver: ClusterDriver, name: str, layout: Layout) -> None:
        self.driver = driver
        self.name = name
        self.layout = layout
        self.wanted = len(layout.workers)
        self.history: list[Seen] = []
        self.uid = ""
        self._closed = threading.Event()
        self._watch: subprocess.Popen[str] | None = None

    def __enter__(self) -> ChaosJob:
        self.driver.kubectl.apply(yaml.safe_dump(_scripts(self.name)), NAMESPACE)
        self.driver.kubectl.apply(yaml.safe_dump(manifest(self.driver, self.name, self.layout)), NAMESPACE)
        self.uid = self.driver.kubectl.get("elasticjob", self.name, NAMESPACE)["metadata"]["uid"]
        self._reader = LedgerReader(self.folder / "ledger")
        for folder in (self.folder, self.folder / "orders"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)  # worker pods write as another user
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()
        shutil.rmtree(self.folder, ignore_errors=True)

    def delete(self) -> None:
        """Does nothing if the job is gone."""
        self._closed.set()
        if self._watch is not None:
            self._watch.terminate()
        self.driver.kubectl.delete("elasticjob", self.name, NAMESPACE, timeout=120)
        self.driver.kubectl.delete("configmap", self.name, NAMESPACE)

    @property
    def folder(self) -> Path:
        """Folder for checkpoints, ledger and orders, shared by all nodes."""
        return SHARED_DIRECTORY / self.uid

    def ledger(self) -> list[Process]:
        """Every worker process so far."""
        return self._reader.read()

    @property
    def status(self) -> dict[str, Any]:
        """The last observed status; empty: none yet. Not updated while the API server is down."""
        return self.history[-1].status if self.history else {}

    @property
    def restarts(self) -> int:
        return int(self.status.get("restarts", {}).get("total", 0))

    def pods(self) -> list[dict[str, Any]]:
        """The worker pods, by index. Raises KubeError."""
        return sorted(self.driver.kubectl.items("pods", NAMESPACE, worker_selector(self.name)), key=_name)

    def pod(self, name: str) -> dict[str, Any]:
        return self.driver.kubectl.get("pod", name, NAMESPACE)

    def worker(self, index: int) -> str:
        """Name of the newest worker pod of that index. Raises LookupError, KubeError."""
        found = [pod["metadata"] for pod in self.pods() if pod["metadata"]["labels"][LABEL_INDEX] == str(index)]
        found.sort(key=lambda metadata: ("deletionTimestamp" not in metadata, metadata["creationTimestamp"]))
        return str(found[-1]["name"])

    @property
    def etcd(self) -> str:
        """The pod of the job's own etcd."""
        return f"{self.name}-etcd-0"

    def events(self) -> list[str]:
        return [
            item["message"]
            for item in self.driver.kubectl.items("events", NAMESPACE)
            if item["involvedObject"].get("uid") == self.uid
        ]

    def delete_pods(self, names: Sequence[str], force: bool = False) -> None:
        words = ["--force", "--grace-period=0"] if force else []
        self.driver.kubectl.run("delete", "pod", *names, "--namespace", NAMESPACE, "--wait=false", *words)

    def scale(self, replicas: int) -> None:
        self.driver.kubectl.run("scale", "elasticjob", self.name, "--namespace", NAMESPACE, f"--replicas={replicas}")
        self.wanted = replicas

    def order(self, member: str, word: str) -> None:
        """Orders the member's worker process to do something to itself (script.py)."""
        aside = self.folder / f"{member}.order"
        aside.write_text(word, encoding="utf-8")
        aside.chmod(0o666)
        aside.rename(self.folder / "orders" / member)

    def finish(self, step: int) -> None:
        """Makes this step the last one."""
        self.order("finish", str(step))

    def _follow(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError, ValueError):
                for job in split_objects(self._lines()):
                    self.history.append(Seen(time.monotonic(), job.get("status", {})))
            self._closed.wait(0.5)

    def _lines(self) -> Iterator[str]:
        words = ("get", "elasticjob", self.name, "--namespace", NAMESPACE, "--watch", "--output=json")
        command = self.driver.kubectl.command(*words)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as self._watch:
            assert self._watch.stdout is not None
            try:
                yield from self._watch.stdout
            finally:
                self._watch.terminate()


def manifest(driver: ClusterDriver, name: str, layout: Layout) -> dict[str, Any]:
    """The digits example with the ledger's script, a sidecar and the layout."""
    made: dict[str, Any] = yaml.safe_load(adapt(MANIFEST.read_text(encoding="utf-8"), driver))
    made["metadata"]["name"] = name
    made["spec"]["failurePolicy"] = {"maxRestarts": MAX_RESTARTS}
    if layout.on_partition:
        made["spec"]["rendezvous"] = {"onPartition": layout.on_partition}
    workers, count = made["spec"]["workers"], len(layout.workers)
    workers.update(replicas=count, minReplicas=1, maxReplicas=4)
    pod = workers["template"]["spec"]
    container = pod["containers"][0]
    pod["volumes"] = [{"name": "chaos", "configMap": {"name": name}}]
    pod["affinity"] = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_prefer(sorted(set(layout.workers)))]}
    }
    if len(set(layout.workers)) == count:  # otherwise the preference for one node must win
        pod["topologySpreadConstraints"] = [_spread(name)]
    pod["terminationGracePeriodSeconds"] = 5
    pod["initContainers"] = [
        {
            "name": "sidecar",
            "image": container["image"],
            "imagePullPolicy": container["imagePullPolicy"],
            "restartPolicy": "Always",
            "command": ["sleep", "infinity"],
            "securityContext": container["securityContext"],
        }
    ]
    container["command"], container["args"] = ["elasticrun", "/chaos/train.py"], []
    container["volumeMounts"] = [{"name": "chaos", "mountPath": "/chaos"}]
    container["resources"] = {"requests": {"cpu": "50m", "memory": "200Mi"}, "limits": {"memory": "800Mi"}}
    folders = {part: f"{_FOLDER}/{part.lower()}" for part in ("CHECKPOINTS", "LEDGER", "ORDERS")}
    if layout.small_disk:
        pod["volumes"].append({"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}})
        container["volumeMounts"].append({"name": "small", "mountPath": "/small"})
        folders["CHECKPOINTS"] = "/small/checkpoints"
    environment = {**folders, "MODE": "checkpoint", "SAMPLES": str(SAMPLES), "PACE": "0.1"}
    if layout.fast_clock:
        fast = worker_host(name, count - 1)
        environment |= {"PYTHONPATH": "/chaos", "CHAOS_CLOCK_AHEAD": "3600", "CHAOS_CLOCK_WORKER": fast}
    container["env"] = [{"name": key, "value": value} for key, value in environment.items()]
    return made


def split_objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Splits the output of `kubectl get --watch --output=json` into objects, each of which ends with a brace at the
    start of a line.

    >>> list(split_objects(["{", '  "a": 1', "}", "{", "}"]))
    [{'a': 1}, {}]
    """
    collected: list[str] = []
    for line in lines:
        collected.append(line)
        if line.rstrip() == "}":
            with contextlib.suppress(ValueError):  # truncated: the watch broke
                yield json.loads("".join(collected))
            collected = []


def _prefer(nodes: list[str]) -> dict[str, Any]:
    wish = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    return {"weight": 100, "preference": {"matchExpressions": [wish]}}


def _spread(name: str) -> dict[str, Any]:
    labels = {"elasticjob.dev/job-name": name, "elasticjob.dev/component": "worker"}
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }


def _scripts(name: str) -> dict[str, Any]:
    data = {"train.py": (HERE / "script.py").read_text(), "sitecustomize.py": (HERE / "fast_clock.py").read_text()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def _name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])
