"""The interface of a cluster for end-to-end tests and the demo."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from hack.drivers.kube import Helm, Kubectl
from hack.images.recipe import reference


class NodePower(Protocol):
    """Controls nodes, to test what happens when they fail. Nodes are given by their Kubernetes names."""

    def power_off(self, name: str) -> None:
        """At once and silently, as when the plug is pulled."""

    def power_on(self, name: str) -> None: ...

    def partition(self, name: str) -> None:
        """Cuts the node off the network; its processes keep running."""

    def heal(self, name: str) -> None: ...

    def freeze(self, name: str) -> None:
        """Stops every process on the node; its connections stay open."""

    def thaw(self, name: str) -> None: ...


class ClusterDriver(abc.ABC):
    """A cluster that can be started, given images, and used with kubectl. Long operations show their steps
    (hack/steps.py)."""

    name: str
    """own or current."""
    kubectl: Kubectl
    helm: Helm
    etcd_image: str | None
    """Image of a job's own etcd; None: the chart's default, which the cluster pulls."""
    pull_policy: str
    """imagePullPolicy that fits how images get to the cluster."""
    power: NodePower | None = None
    no_power = ""
    """Why `power` is None; empty otherwise."""
    shared_directory: str | None = None
    """A folder that every node has at this path with the same content, for hostPath volumes in tests; None: there is
    none."""
    checkpoint_volume: dict[str, Any] | None = None
    """The volume for checkpoints in place of the examples' (which is a hostPath on `shared_directory`); None: theirs
    works."""

    @abc.abstractmethod
    def up(self) -> None:
        """Starts the cluster. Needs no images, so it can run during the image build. Does nothing if the cluster is up.
        Raises ClusterError."""

    @abc.abstractmethod
    def load_images(self, images: Mapping[str, Path]) -> None:
        """Loads images (name -> archive) into the running cluster. Raises ClusterError."""

    @abc.abstractmethod
    def down(self) -> None:
        """Removes everything that `up` created; nothing on an existing cluster."""

    @abc.abstractmethod
    def image(self, name: str) -> str:
        """The name of one of our images in a pod on this cluster."""


def adapt(manifest: str, driver: ClusterDriver) -> str:
    """Adapts manifests of ElasticJobs (YAML) to this cluster: its names of our images, and its checkpoint volume."""
    for name in ("operator", "runtime", "plain", "frameworks", "trainer"):
        manifest = manifest.replace(reference(name), driver.image(name))
    if driver.checkpoint_volume is None:
        return manifest
    documents = [document for document in yaml.safe_load_all(manifest) if document]
    for document in documents:
        checkpoint = document.get("spec", {}).get("checkpoint", {})
        if "volume" in checkpoint:
            checkpoint["volume"] = driver.checkpoint_volume
    return yaml.safe_dump_all(documents, sort_keys=False)
