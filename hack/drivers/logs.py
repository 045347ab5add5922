"""Collects logs, events and objects for debugging."""

from __future__ import annotations

from pathlib import Path

from hack.drivers.install import NAMESPACE
from hack.drivers.kube import KubeError
from hack.drivers.protocol import ClusterDriver


def collect_logs(driver: ClusterDriver, folder: Path, namespace: str = "default") -> list[Path]:
    """Writes the operator's log, every pod's logs, jobs, pods and events of both namespaces below `folder`; returns the
    files.

    Never fails: a file that cannot be collected holds the reason instead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        "events.txt": ["get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"],
        "pods.txt": ["get", "pods", "--all-namespaces", "--output", "wide"],
        "nodes.txt": ["get", "nodes", "--output", "wide"],
        "elasticjobs.yaml": ["get", "elasticjobs", "--all-namespaces", "--output", "yaml"],
    }
    for space in dict.fromkeys((NAMESPACE, namespace)):
        wanted |= {f"{space}-{pod}.log": _logs_of(pod, space) for pod in _pods(driver, space)}
    return [_write(driver, folder / name, words) for name, words in wanted.items()]


def _logs_of(pod: str, namespace: str) -> list[str]:
    return ["logs", pod, "--namespace", namespace, "--all-containers", "--timestamps", "--ignore-errors", "--prefix"]


def _pods(driver: ClusterDriver, namespace: str) -> list[str]:
    try:
        return [pod["metadata"]["name"] for pod in driver.kubectl.items("pods", namespace)]
    except KubeError:
        return []


def _write(driver: ClusterDriver, file: Path, words: list[str]) -> Path:
    try:
        text = driver.kubectl.run(*words, timeout=20)
    except KubeError as error:
        text = f"{error}\n"
    file.write_text(text, encoding="utf-8")
    return file
