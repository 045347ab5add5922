"""The test cluster of hack/cluster: real kubelets in network namespaces of this machine. Needs root; can switch nodes
off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from hack import cluster
from hack.drivers.kube import Helm, Kubectl
from hack.drivers.protocol import DriverError, NodePower
from hack.images.recipe import reference


class OwnCluster:
    """Supports everything that tests and demo need, with only Debian packages and Go programs."""

    name = "own"
    etcd_image = cluster.ETCD_IMAGE
    pull_policy = "Never"
    power: NodePower = cluster
    no_power = ""
    shared_directory = str(cluster.SHARED_DIRECTORY)
    checkpoint_volume = None

    def __init__(self, nodes: int = 3) -> None:
        self._nodes = nodes
        self.kubectl = Kubectl(cluster.KUBECONFIG)
        self.helm = Helm(cluster.KUBECONFIG)

    def up(self) -> None:
        _or_driver_error(partial(cluster.up, self._nodes))

    def load_images(self, images: Mapping[str, Path]) -> None:
        for archive in images.values():
            _or_driver_error(partial(cluster.load_image, archive))

    def down(self) -> None:
        _or_driver_error(cluster.down)

    def image(self, name: str) -> str:
        return reference(name)


def _or_driver_error(call: Callable[[], object]) -> None:
    try:
        call()
    except cluster.ClusterError as error:
        raise DriverError(str(error)) from error
