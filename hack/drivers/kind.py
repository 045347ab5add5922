"""A kind cluster; needs docker and kind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from hack.drivers.kube import Helm, Kubectl
from hack.drivers.protocol import DriverError
from hack.images.docker import docker_runs
from hack.images.machine import output_of
from hack.images.recipe import ROOT, reference
from hack.steps import StepError, Steps, run_logged

CLUSTER = "elasticjob"
SHARED = "/var/lib/elasticjob-shared"


def kind_config(nodes: int, shared: Path, image: str = "") -> str:
    """kind's configuration: a control plane and `nodes` workers that share the folder `shared`, as JSON (which is
    YAML). `image`: the node image, and with it the version of Kubernetes; empty: kind's default."""
    mount = {"hostPath": str(shared), "containerPath": SHARED}
    common = {"image": image} if image else {}
    roles = [
        {"role": "control-plane", **common},
        *({"role": "worker", **common, "extraMounts": [mount]} for _ in range(nodes)),
    ]
    return json.dumps({"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": roles})


class KindCluster:
    """kind creates it, kind loads the images, kind deletes it."""

    name = "kind"
    etcd_image = None
    pull_policy = "IfNotPresent"
    power = None
    no_power = "controlling nodes requires the test cluster (CLUSTER=own): kind manages its nodes, which are containers"
    shared_directory = SHARED
    checkpoint_volume = None

    def __init__(self, folder: Path = ROOT / ".cluster" / "kind", nodes: int = 3) -> None:
        self._folder = folder
        self._nodes = nodes
        self._log = folder / "kind.log"
        self._kubeconfig = folder / "kubeconfig"
        self.kubectl = Kubectl(self._kubeconfig)
        self.helm = Helm(self._kubeconfig)

    def up(self) -> None:
        if not shutil.which("kind"):
            raise DriverError(
                "CLUSTER=kind needs kind on PATH: https://kind.sigs.k8s.io/docs/user/quick-start/#installation"
            )
        if not docker_runs():
            raise DriverError("CLUSTER=kind needs a Docker engine that answers `docker info`")
        if CLUSTER in output_of("kind", "get", "clusters").split():
            return
        shared = self._folder / "shared"
        shared.mkdir(parents=True, exist_ok=True)
        shared.chmod(0o777)  # worker pods write as another user
        config = self._folder / "config.json"
        config.write_text(kind_config(self._nodes, shared, os.environ.get("KIND_NODE_IMAGE", "")), encoding="utf-8")
        with (
            Steps() as steps,
            steps.step("Create the kind cluster", "a control plane and nodes as containers", 60) as step,
        ):
            self._kind(["create", "cluster", "--name", CLUSTER, "--config", str(config), "--wait", "120s"], step.say)

    def load_images(self, images: Mapping[str, Path]) -> None:
        for name, archive in images.items():
            with Steps() as steps, steps.step(f"Load image {name} into kind", "", 20):
                self._kind(["load", "image-archive", "--name", CLUSTER, str(archive)])

    def down(self) -> None:
        with Steps() as steps, steps.step("Delete the kind cluster"):
            self._kind(["delete", "cluster", "--name", CLUSTER])
        shutil.rmtree(self._folder, ignore_errors=True)

    def image(self, name: str) -> str:
        return reference(name)

    def _kind(self, words: list[str], on_line: Callable[[str], None] | None = None) -> None:
        kubeconfig = [] if words[0] == "load" else ["--kubeconfig", str(self._kubeconfig)]
        try:
            run_logged(["kind", *words, *kubeconfig], self._log, on_line)
        except StepError as error:
            raise DriverError(str(error)) from error
