"""The Helm chart: rendered, and installed on a test's API server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import ControlPlane
from hack.cluster.output import run
from hack.cluster.programs import program
from hack.cluster.settings import KUBERNETES_VERSION
from tests.integration.operator.kube import Kube

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "elasticjob"
CRD = "elasticjobs.elasticjob.dev"


def helm(*words: str | Path) -> str:
    return run([program("helm"), *words])


def rendered(*settings: str) -> list[dict[str, Any]]:
    """The chart's objects with these --set values."""
    flags = [word for setting in settings for word in ("--set", setting)]
    text = helm("template", "ej", CHART, "--namespace", "system", "--kube-version", KUBERNETES_VERSION, *flags)
    return [item for item in yaml.safe_load_all(text) if item]


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] in kinds]


class Release:
    """The chart, installed in a namespace of its own."""

    def __init__(self, control_plane: ControlPlane, *settings: str) -> None:
        self.control_plane = control_plane
        self.namespace = f"chart-{uuid.uuid4().hex[:8]}"
        self.kubectl = control_plane.kubectl
        self._kube = Kube(control_plane.kubeconfig)
        self._flags = [word for setting in settings for word in ("--set", setting)]

    def helm(self, *words: str | Path) -> str:
        return helm("--kubeconfig", self.control_plane.kubeconfig, "--namespace", self.namespace, *words)

    def install(self) -> str:
        return self.helm("upgrade", "--install", "ej", CHART, "--create-namespace", "--take-ownership", *self._flags)

    def uninstall(self) -> None:
        self.helm("uninstall", "ej", "--ignore-not-found")
        self.kubectl("delete", "namespace", self.namespace, "--wait=false", "--ignore-not-found")

    def may(self, verb: str, what: str, namespace: str, name: str = "") -> bool:
        """`what` as kubectl writes it: resource, resource.group or resource.group/subresource.

        Asks the API server itself: a hundred kubectl processes would take long.
        """
        kind, _, subresource = what.partition("/")
        resource, _, group = kind.partition(".")
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{self.namespace}:ej-elasticjob",
                "resourceAttributes": {
                    "verb": verb,
                    "group": group,
                    "resource": resource,
                    "subresource": subresource,
                    "namespace": namespace,
                    "name": name,
                },
            },
        }
        answer = self._kube.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])


@pytest.fixture(scope="module")
def release(control_plane_server: ControlPlane) -> Iterator[Release]:
    release = Release(control_plane_server)
    release.install()
    yield release
    release.uninstall()
