"""The operator's Helm release, as an administrator handles it: upgrade, test, uninstall, restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hack.drivers import ClusterDriver, KubeError
from hack.drivers.install import CHART, NAMESPACE, RELEASE
from hack.support import eventually

OPERATORS = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=operator"


class Release:
    """The installed release. `restore` reverts what a test changed."""

    def __init__(self, cluster: ClusterDriver, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._values = self.values
        self._changed = False

    @property
    def values(self) -> dict[str, Any]:
        text = self._cluster.helm.run("get", "values", RELEASE, "--namespace", NAMESPACE, "--output", "yaml")
        return yaml.safe_load(text) or {}

    def upgrade(self, **changes: object) -> None:
        """`helm upgrade` with these values changed from the first ones; returns when the new operators are ready."""
        self._changed = True
        self._install({**self._values, **changes})

    def restore(self) -> None:
        if self._changed:
            self._install(self._values)
            self._changed = False

    def uninstall(self) -> None:
        self._changed = True
        self._cluster.helm.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "60s")
        eventually(lambda: not self.operators, 60, 0.5, "no operator is left")

    def test(self) -> str:
        """`helm test`; its output. Raises KubeError where it fails."""
        return self._cluster.helm.run("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "90s")

    @property
    def operators(self) -> list[str]:
        """Names of the operators' pods, terminating ones included."""
        return sorted(pod["metadata"]["name"] for pod in self._cluster.kubectl.items("pods", NAMESPACE, OPERATORS))

    @property
    def leader(self) -> str:
        """The pod that holds the lease; empty if none does."""
        return str(self._cluster.kubectl.get("lease", RELEASE, NAMESPACE)["spec"].get("holderIdentity") or "")

    def leads(self, pod: str) -> bool:
        """Whether the pod reports itself as the leader."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics"
        try:
            lines = self._cluster.kubectl.run("get", "--raw", path, timeout=10).splitlines()
        except KubeError:
            return False
        return "elasticjob_leader 1.0" in lines

    def _install(self, values: dict[str, Any]) -> None:
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        words = ("upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace")
        self._cluster.helm.run(
            *words, "--reset-values", "--values", str(file), "--wait", "--timeout", "120s", timeout=150
        )
