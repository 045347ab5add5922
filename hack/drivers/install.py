"""Installs the chart on any cluster, with Helm."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from hack.drivers.protocol import ClusterDriver
from hack.images.recipe import ROOT

NAMESPACE = "elasticjob-system"
RELEASE = "elasticjob"
CHART = ROOT / "charts" / "elasticjob"


def chart_values(driver: ClusterDriver, images: Mapping[str, Path]) -> dict[str, str]:
    """The chart's values for this cluster: the images' names there."""
    repository, _, tag = driver.image("operator").rpartition(":")
    values = {"image.repository": repository, "image.tag": tag, "image.pullPolicy": driver.pull_policy}
    repository, _, tag = driver.image("runtime").rpartition(":")
    values |= {"runtime.repository": repository, "runtime.tag": tag, "runtime.pullPolicy": driver.pull_policy}
    if driver.etcd_image:
        values["etcdImage"] = driver.etcd_image
    if "operator" in images:
        # The tag is the same for every build, so this annotation makes a new image start a new pod.
        values["podAnnotations.elasticjob\\.dev/image"] = _digest(images["operator"])
    return values


def install_chart(driver: ClusterDriver, images: Mapping[str, Path], extra: Mapping[str, str] | None = None) -> None:
    """Installs or upgrades the chart and waits until the operator is ready. `extra`: further values (dotted names).
    Raises KubeError."""
    values = {**chart_values(driver, images), **(extra or {})}
    words = [word for name, value in values.items() for word in ("--set-string", f"{name}={value}")]
    where = ("--namespace", NAMESPACE, "--create-namespace")
    options = (*where, "--wait", "--timeout", "120s")
    driver.helm.run("upgrade", "--install", RELEASE, str(CHART), *options, *words, timeout=150)


def uninstall_chart(driver: ClusterDriver) -> None:
    """Removes the release and its namespace, if they exist. The CRD, and with it every job, stays."""
    driver.helm.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
    driver.kubectl.delete("namespace", NAMESPACE, timeout=120)


def _digest(archive: Path) -> str:
    """A short digest of an archive's content: the name of its folder in the cache."""
    return hashlib.sha256(str(archive.resolve()).encode()).hexdigest()[:16]
