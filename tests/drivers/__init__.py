"""One way to any cluster, for end-to-end tests and the demo: `CLUSTER=own` (default), `kind` or `current`.

driver = cluster_driver()
with Steps() as steps:
    _, images = concurrently(lambda: driver.prepare(steps), lambda: build(steps=steps))
    driver.up(steps, images)
    install_chart(driver, images)
driver.kubectl.apply(Path("examples/digits/elasticjob.yaml"))
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tests.drivers.install import install_chart, uninstall_chart
from tests.drivers.kube import Helm, Kubectl, KubeError
from tests.drivers.logs import collect_logs
from tests.drivers.protocol import ClusterDriver, DriverError, NodePower, adapt

__all__ = [
    "ClusterDriver",
    "DriverError",
    "Helm",
    "KubeError",
    "Kubectl",
    "NodePower",
    "adapt",
    "cluster_driver",
    "collect_logs",
    "install_chart",
    "uninstall_chart",
]


def cluster_driver(environment: Mapping[str, str] = os.environ) -> ClusterDriver:
    """The cluster that `CLUSTER` names. Raises DriverError for another word."""
    name = environment.get("CLUSTER", "").strip() or "own"
    if name == "own":
        from tests.drivers.own import OwnCluster  # builds on tests.cluster, which the others do without

        return OwnCluster()
    if name == "kind":
        from tests.drivers.kind import KindCluster

        return KindCluster()
    if name == "current":
        from tests.drivers.current import CurrentCluster

        return CurrentCluster(environment)
    raise DriverError(f"CLUSTER={name}: must be own (made here, needs root), kind (needs docker and kind) or current (your kubeconfig)")
