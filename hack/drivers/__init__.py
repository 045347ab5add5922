"""One interface to any cluster, for end-to-end tests and the demo: `CLUSTER=own` (default) or `current`.

driver = cluster_driver()
driver.up()
driver.load_images(images)
install_chart(driver, images)
driver.kubectl.apply(Path("examples/digits/elasticjob.yaml"))
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hack.cluster.output import ClusterError
from hack.drivers.current import CurrentCluster
from hack.drivers.install import install_chart, uninstall_chart
from hack.drivers.kube import Helm, Kubectl, KubeError
from hack.drivers.logs import collect_logs
from hack.drivers.own import OwnCluster
from hack.drivers.protocol import ClusterDriver, NodePower, adapt

__all__ = [
    "ClusterDriver",
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
    """The cluster that `CLUSTER` names. Raises ClusterError for any other value."""
    name = environment.get("CLUSTER", "").strip() or "own"
    if name == "own":
        return OwnCluster()
    if name == "current":
        return CurrentCluster(environment)
    raise ClusterError(f"CLUSTER={name}: must be own (created here, needs root) or current (your kubeconfig)")
