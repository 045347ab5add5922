"""ElasticJobs as users write them, valid and invalid, and the API server that accepts or rejects them."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from elasticjob_api import API_VERSION, ElasticJob

from hack.cluster import ControlPlane
from tests.integration.operator.conftest import install_crd
from tests.integration.operator.kube import ApiStatusError, Kube

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"

Manifest = dict[str, Any]

BASE: Manifest = {
    "apiVersion": API_VERSION,
    "kind": "ElasticJob",
    "metadata": {"name": "digits"},
    "spec": {
        "workers": {
            "replicas": 4,
            "template": {
                "metadata": {"labels": {"team": "vision"}},
                "spec": {
                    "nodeSelector": {"disk": "ssd"},
                    "containers": [
                        {
                            "name": "trainer",
                            "image": "train:1",
                            "command": ["torchrun", "train.py"],
                            "env": [{"name": "LR", "value": "0.1"}],
                        },
                        {"name": "sidecar", "image": "sidecar:1", "env": [{"name": "RANK", "value": "mine"}]},
                    ],
                },
            },
        }
    },
}

WORKERS = "spec.workers"
POD = "spec.workers.template.spec"
TRAINER = f"{POD}.containers.0"


GONE = object()


class Case(NamedTuple):
    """Changes to BASE, by path (GONE removes the field), and what the API server must say."""

    changes: dict[str, Any]
    words: tuple[str, ...] = ()


def changed(changes: dict[str, Any], manifest: Manifest = BASE) -> Manifest:
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        target: Any = result
        for parent in parents:
            target = target.setdefault(parent, {}) if isinstance(target, dict) else target[parent]
        if value is not GONE and isinstance(target, list) and last == len(target):
            target.append(value)
        elif value is GONE:
            del target[last]
        else:
            target[last] = value
    return result


class Cluster:
    """A namespace of a test's own."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._control_plane = control_plane
        self._kube = Kube(control_plane.kubeconfig)
        self.namespace = namespace
        self._path = f"/apis/{API_VERSION}/namespaces/{namespace}/elasticjobs"

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self._control_plane.kubectl("--namespace", self.namespace, *words, stdin=stdin)

    def apply(self, manifest: Manifest) -> ElasticJob:
        return ElasticJob.parse(
            json.loads(self.kubectl("apply", "--output=json", "--filename=-", stdin=json.dumps(manifest)))
        )

    def get(self, name: str = "digits") -> Manifest:
        return self._kube.call("GET", f"{self._path}/{name}")

    def set_status(self, status: Manifest, name: str = "digits") -> None:
        """As the operator does."""
        self._kube.call("PATCH", f"{self._path}/{name}/status", {"status": status}, "application/merge-patch+json")

    def create(self, manifest: Manifest) -> None:
        self._kube.call("POST", self._path, manifest)

    # As kubectl --dry-run=server, without starting it a hundred times

    def try_to_create(self, manifest: Manifest) -> ElasticJob:
        body = self._kube.call("POST", self._path, manifest, dryRun="All", fieldValidation="Strict")
        body["metadata"]["namespace"] = self.namespace
        return ElasticJob.parse(body)

    def try_to_change(self, manifest: Manifest) -> None:
        """Updates the job to `manifest`, as a dry run."""
        path = f"{self._path}/{manifest['metadata']['name']}"
        known = self._kube.call("GET", path)
        metadata = {**manifest["metadata"], "resourceVersion": known["metadata"]["resourceVersion"]}
        body = {**manifest, "metadata": metadata}
        self._kube.call("PUT", path, body, dryRun="All", fieldValidation="Strict")

    def try_to_create_pod(self, pod: Manifest) -> str:
        """Creates the pod as a dry run. Returns the server's error message; empty where it accepts the pod."""
        try:
            self._kube.call(
                "POST", f"/api/v1/namespaces/{self.namespace}/pods", pod, dryRun="All", fieldValidation="Strict"
            )
        except ApiStatusError as error:
            return str(error)
        return ""

    def judges(self, case: Case, base: Manifest = BASE, *, change: bool = False) -> None:
        """Whether the server accepts the case, or rejects it with all of its words. `change`: as one of the job."""
        ask = self.try_to_change if change else self.try_to_create
        if not case.words:
            ask(changed(case.changes, base))
            return
        with pytest.raises(ApiStatusError) as caught:
            ask(changed(case.changes, base))
        for words in case.words:
            assert words in str(caught.value)


@pytest.fixture(scope="module")
def api(control_plane_server: ControlPlane) -> ControlPlane:
    _install_once(control_plane_server)
    return control_plane_server


_install_once = functools.cache(install_crd)


@contextlib.contextmanager
def namespace(api: ControlPlane) -> Iterator[Cluster]:
    kube, name = Kube(api.kubeconfig), f"api-{uuid.uuid4().hex[:8]}"
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield Cluster(api, name)
    kube.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def cluster(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace of the test's own."""
    with namespace(api) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def empty(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace for dry runs."""
    with namespace(api) as cluster:
        yield cluster
