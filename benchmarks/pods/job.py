"""The job to measure: the digits example's manifest with another script, whose log is read through one of its pods."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from elasticjob_operator.names import worker_selector

from benchmarks.pods.measure import Worker, newest_world, parse_log
from hack.drivers import ClusterDriver, KubeError, adapt
from hack.images.recipe import ROOT

MANIFEST = ROOT / "examples" / "digits" / "elasticjob.yaml"
SCRIPT = Path(__file__).with_name("script.py")
NAMESPACE = "default"
LIMIT = 180.0
"""s after which the job counts as never training again."""
STEADY_STEPS = 40
"""Steps that every rank must do, about two seconds, before the next change."""
_FOLDER = "$(ELASTICJOB_CHECKPOINT_DIRECTORY)/$(PET_RDZV_ID)"
_READ = 'for file in "$BENCH_FOLDER"/steps/*.log; do cat "$file"; echo "=="; done'


class JobError(Exception):
    """The job did not reach the state to measure."""


class Job:
    """A context manager that deletes the job at its end. `launcher`: the command that starts the script in each pod."""

    def __init__(self, driver: ClusterDriver, name: str, launcher: list[str], replicas: int) -> None:
        self._driver = driver
        self._name = name
        self._manifest = _manifest(driver, name, launcher, replicas)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.kubectl.delete("elasticjob", self._name, NAMESPACE, timeout=120)
        self._driver.kubectl.delete("configmap", self._name, NAMESPACE)

    def apply(self) -> float:
        """Returns when it was applied (Unix time)."""
        script = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self._name},
            "data": {"train.py": SCRIPT.read_text()},
        }
        self._driver.kubectl.apply(yaml.safe_dump(script), NAMESPACE)
        now = time.time()
        self._driver.kubectl.apply(yaml.safe_dump(self._manifest), NAMESPACE)
        return now

    def delete_pod(self, rank: int, world: int) -> float:
        """Deletes the pod of this rank. Returns when (Unix time)."""
        pod = next(worker.member for worker in newest_world(self.workers(), world, 0.0) if worker.rank == rank)
        now = time.time()
        self._driver.kubectl.run("delete", "pod", pod, "--namespace", NAMESPACE, "--wait=false")
        return now

    def scale(self, replicas: int) -> float:
        now = time.time()
        self._driver.kubectl.run("scale", "elasticjob", self._name, "--namespace", NAMESPACE, f"--replicas={replicas}")
        return now

    def workers(self) -> list[Worker]:
        """Every worker process so far; empty while no pod can be reached."""
        for pod in self._driver.kubectl.items("pods", NAMESPACE, worker_selector(self._name)):
            if pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
                continue
            try:
                text = self._driver.kubectl.run(
                    "exec", pod["metadata"]["name"], "--namespace", NAMESPACE, "--", "sh", "-c", _READ
                )
            except KubeError:
                continue
            return [worker for part in text.split("==\n") if (worker := parse_log(part))]
        return []

    def wait_for_training(self, world: int, since: float) -> list[Worker]:
        """Waits until a world of this size that began after `since` trains steadily. Raises JobError."""
        return self._wait(lambda workers: _is_steady(newest_world(workers, world, since)), f"a world of {world}")

    def _wait(self, done: Callable[[list[Worker]], bool], what: str) -> list[Worker]:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            workers = self.workers()
            if done(workers):
                return workers
            time.sleep(1.0)  # polling uses CPU too
        raise JobError(f"{self._name}: {what} did not train within {LIMIT:g} s")


def _is_steady(workers: list[Worker]) -> bool:
    return bool(workers) and all(len(worker.steps) >= STEADY_STEPS for worker in workers)


def _manifest(driver: ClusterDriver, name: str, launcher: list[str], replicas: int) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(adapt(MANIFEST.read_text(encoding="utf-8"), driver))
    manifest["metadata"]["name"] = name
    workers = manifest["spec"]["workers"]
    workers.update(replicas=replicas, minReplicas=1, maxReplicas=replicas)
    pod = workers["template"]["spec"]
    pod["volumes"] = [{"name": "script", "configMap": {"name": name}}]
    container = pod["containers"][0]
    container["command"], container["args"] = [*launcher, "/script/train.py"], []
    container["volumeMounts"] = [{"name": "script", "mountPath": "/script"}]
    container["env"] = [
        {"name": "BENCH_MEMBER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "BENCH_FOLDER", "value": _FOLDER},
    ]
    return manifest
