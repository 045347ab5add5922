"""The test cluster of hack/cluster: real kubelets in network namespaces of this machine. Needs root; can switch nodes
off."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hack import cluster
from hack.drivers.kube import Helm, Kubectl
from hack.drivers.protocol import ClusterDriver, NodePower
from hack.images.recipe import reference


class OwnCluster(ClusterDriver):
    """Supports everything that tests and demo need, with only Debian packages and Go programs."""

    name = "own"
    etcd_image = cluster.ETCD_IMAGE
    pull_policy = "Never"
    power: NodePower = cluster
    shared_directory = str(cluster.SHARED_DIRECTORY)

    def __init__(self) -> None:
        self.kubectl = Kubectl(cluster.KUBECONFIG)
        self.helm = Helm(cluster.KUBECONFIG)

    def up(self) -> None:
        cluster.up()

    def load_images(self, images: Mapping[str, Path]) -> None:
        for archive in images.values():
            cluster.load_image(archive)

    def down(self) -> None:
        cluster.down()

    def image(self, name: str) -> str:
        return reference(name)
