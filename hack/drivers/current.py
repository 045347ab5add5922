"""The cluster of the current kubeconfig: an existing one, neither created nor deleted here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from hack.cluster.output import ClusterError
from hack.drivers.kube import Helm, Kubectl, KubeError
from hack.drivers.protocol import ClusterDriver
from hack.images import builder
from hack.images.recipe import ROOT, reference
from hack.steps import StepError, Steps, run_logged

HOW = """\
CLUSTER=current: set one of the following, so that the cluster gets the images.
Either a command that loads an archive, with the placeholders {image} and {archive}:
    IMAGE_LOAD='kind load image-archive {archive}'        IMAGE_LOAD='minikube image load {archive}'
or a registry to which the images are pushed, and from which the cluster pulls them:
    IMAGE_REGISTRY=registry.example/team
If the cluster already has the images, set IMAGE_LOAD=true.
ETCD_IMAGE sets the image of etcd if the cluster cannot pull the chart's default.
CHECKPOINT_CLAIM names a ReadWriteMany claim for checkpoints; without it, each worker pod keeps its own."""


def load_command(template: str, image: str, archive: Path) -> list[str]:
    """IMAGE_LOAD with its placeholders filled in, as a command line. Raises ClusterError where it is no command line.

    >>> load_command("load --name x {archive}", "localhost/a:dev", Path("/tmp/a.tar"))
    ['load', '--name', 'x', '/tmp/a.tar']
    """
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ClusterError(f"IMAGE_LOAD={template!r} is not a command line: {error}") from error
    return [word.replace("{image}", image).replace("{archive}", str(archive)) for word in words]


class CurrentCluster(ClusterDriver):
    """Whatever kubectl reaches with the current kubeconfig and context."""

    name = "current"
    no_power = (
        "controlling nodes requires the test cluster (CLUSTER=own): the nodes of an existing cluster are left alone"
    )

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._load = environment.get("IMAGE_LOAD", "").strip()
        self._registry = environment.get("IMAGE_REGISTRY", "").strip().rstrip("/")
        self._log = ROOT / ".cluster" / "current.log"
        self.etcd_image = environment.get("ETCD_IMAGE", "").strip() or None
        self.pull_policy = "Always" if self._registry else "IfNotPresent"
        claim = environment.get("CHECKPOINT_CLAIM", "").strip()
        # Without a shared volume, each worker pod has its own checkpoints: enough while rank 0's pod stays.
        self.checkpoint_volume = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        self.kubectl = Kubectl(None)
        self.helm = Helm(None)

    def up(self) -> None:
        if not (self._load or self._registry):
            raise ClusterError(HOW)
        try:
            context = self.kubectl.run("config", "current-context").strip()
            self.kubectl.run("get", "--raw", "/readyz")
        except KubeError as error:
            raise ClusterError(f"CLUSTER=current: the current kubeconfig reaches no cluster.\n{error}") from error
        with Steps() as steps:
            steps.console.print(f"cluster: {context}", markup=False)

    def load_images(self, images: Mapping[str, Path]) -> None:
        for name, archive in images.items():
            with (
                Steps() as steps,
                steps.step(f"Load image {name} into the cluster", self._registry or self._load) as step,
            ):
                try:
                    if self._registry:
                        builder().push(archive, reference(name), self.image(name), step)
                    else:
                        run_logged(load_command(self._load, reference(name), archive), self._log, step.say)
                except StepError as error:
                    raise ClusterError(str(error)) from error

    def down(self) -> None:
        """Does nothing: the cluster was not created here."""

    def image(self, name: str) -> str:
        return f"{self._registry}/elasticjob-{name}:dev" if self._registry else reference(name)
