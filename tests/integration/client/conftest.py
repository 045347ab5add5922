"""The client against a real API server. The test plays the operator, the kubelets and other users."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from elasticjob import ElasticJobClient
from elasticjob.cli.app import run

from hack.cluster.loopback import ControlPlane
from tests.integration.client.kubelet import NODE, Kubelet
from tests.integration.operator.conftest import kube, ns, rfc3339
from tests.integration.operator.kube import Json, Kube, Namespace

__all__ = ["kube", "ns"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def kubelet(control_plane_server: ControlPlane, kube: Kube) -> Iterator[Kubelet]:
    kubelet = Kubelet(control_plane_server.directory / "pki", kube)
    yield kubelet
    kubelet.close()


@pytest.fixture
def cli(ns: Namespace, control_plane: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in the test's namespace, in this process."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane))

    def call(command: str, *arguments: str, namespace: str = ns.name) -> Result:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([command, *(["-n", namespace] if namespace else []), *arguments])
        return Result(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def start(ns: Namespace, control_plane: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command as a process of its own; its output is read line by line."""
    started: list[subprocess.Popen[str]] = []

    def call(command: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticjob", command, "-n", ns.name, *arguments],
            stdout=subprocess.PIPE,
            stderr=(tmp_path / f"stderr-{len(started)}").open("w"),
            text=True,
            env={**os.environ, "KUBECONFIG": str(control_plane), **environment},
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def client(ns: Namespace, control_plane: Path) -> ElasticJobClient:
    return ElasticJobClient(ns.name, kubeconfig=str(control_plane))


class Operator:
    """What the operator does, as the test tells it."""

    def __init__(self, ns: Namespace) -> None:
        self._ns = ns

    def status(self, job: str, **status: Any) -> None:
        self._ns.patch("elasticjobs", job, {"status": status}, "status")

    def conditions(self, job: str, *true: str, reason: str = "", message: str = "", **false: str) -> None:
        """`true`: types. `false`: type=reason."""
        conditions = [(item, "True", reason or item) for item in true]
        conditions += [(item, "False", why) for item, why in false.items()]
        self.status(
            job,
            conditions=[
                {
                    "type": type_,
                    "status": status,
                    "reason": why,
                    "message": message or f"{type_} is {status}.",
                    "lastTransitionTime": rfc3339(),
                }
                for type_, status, why in conditions
            ],
            summary=(true or tuple(false.values()) or ("",))[-1],
        )

    def worker(self, job: str, index: int, *, running: bool = True) -> Json:
        """Creates a worker pod, on the node whose kubelet serves logs."""
        owner = self._ns.job(job)["metadata"]
        name = f"{job}-worker-{index}"
        labels = {
            "elasticjob.dev/job-name": job,
            "elasticjob.dev/component": "worker",
            "elasticjob.dev/worker-index": str(index),
        }
        reference = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "name": job, "uid": owner["uid"]}
        metadata = {"name": name, "labels": labels, "ownerReferences": [reference]}
        spec = {"containers": [{"name": "trainer", "image": "none"}], "restartPolicy": "Never"}
        pod = self._ns.create("pods", {"metadata": metadata, "spec": spec})
        if running:
            self._ns.run(name, NODE)
        return pod


@pytest.fixture
def operator(ns: Namespace) -> Operator:
    return Operator(ns)


@pytest.fixture
def submitted(cli: Callable[..., Result]) -> str:
    """An elastic job of two to four worker pods."""
    result = cli(
        "submit", "bert", "--image", "train:1", "--workers", "2:4", "--replicas", "3", "--", "python", "train.py"
    )
    assert result.code == 0, result.err
    return "bert"
