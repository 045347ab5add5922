"""Tutorials, run block by block as they stand in the page.

Only what a test cluster lacks is provided: a registry (docker_stand_in.py), the public image of etcd, and a volume that
all nodes can mount.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import cluster as own
from hack.checks.steps import Save, steps
from hack.cluster.oci import write_archive
from hack.cluster.programs import program
from hack.drivers import ClusterDriver
from hack.drivers.install import CHART
from hack.images.recipe import ROOT
from tests.e2e.release import Release

pytestmark = [pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(1100, func_only=True)]


@pytest.fixture
def clone(cluster: ClusterDriver, tmp_path: Path) -> Path:
    """A folder like a clone, for a reader who has installed nothing yet; with the programs that the pages ask for."""
    if cluster.name != "own":
        pytest.skip("it loads images into the nodes")
    clone, programs = tmp_path / "clone", tmp_path / "bin"
    for folder in (clone, programs):
        folder.mkdir()
    shutil.copytree(ROOT / "examples", clone / "examples")  # an image is built from it, and builders follow no links
    for path in (*ROOT.glob("[!.]*"), ROOT / ".venv"):
        if path.name != "examples":
            (clone / path.name).symlink_to(path)
    for name in ("kubectl", "helm"):
        (programs / name).symlink_to(program(name))
    docker = programs / "docker"
    docker.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.e2e.docker_stand_in "$@"\n', encoding="utf-8"
    )
    docker.chmod(0o755)
    return clone


@pytest.fixture
def nothing_installed(cluster: ClusterDriver, clone: Path, release: Release) -> Iterator[None]:
    """A cluster without the operator, with the public image of etcd and a volume that all nodes can mount."""
    release.uninstall()
    provide_etcd(clone.parent / "etcd.tar")
    volume = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}}
    claim = {**volume, "hostPath": {"path": cluster.shared_directory}}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "rwx"}, "spec": claim}
    cluster.kubectl.apply(yaml.safe_dump(body))
    yield
    cluster.kubectl.run("delete", "elasticjobs", "--all", "--wait")
    cluster.kubectl.delete("persistentvolume", "rwx", wait=False)


def provide_etcd(archive: Path) -> None:
    """The image that the chart names for jobs' etcds."""
    name = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["etcdImage"]
    programs = {f"/usr/local/bin/{item}": program(item) for item in ("etcd", "etcdctl")}
    write_archive(archive, name, programs, ["/usr/local/bin/etcd"])
    own.load_image(archive)


def follow(page: str, clone: Path, kubeconfig: Path | None) -> list[str]:
    """Does what the page says. Returns the output of each block of commands."""
    environment = {**os.environ, "PATH": f"{clone.parent / 'bin'}:{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)}
    outputs = []
    for step in steps((ROOT / page).read_text(encoding="utf-8")):
        if isinstance(step, Save):
            (clone / step.path).write_text(step.text, encoding="utf-8")
            continue
        print(f"{page}:{step.line}\n{step.script}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step.script],
            cwd=clone,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=900,
        )
        print(done.stdout)
        assert done.returncode == 0, f"{page}:{step.line}: exit code {done.returncode}\n{done.stdout[-3000:]}"
        outputs.append(done.stdout)
    return outputs


@pytest.mark.usefixtures("nothing_installed")
def test_your_first_job_works_as_it_is_written(cluster: ClusterDriver, clone: Path) -> None:
    *_, shown, broken, resized, result, _ = follow("docs/tutorials/first-job.md", clone, cluster.kubectl.kubeconfig)
    assert "Running" in shown
    assert "deleted" in broken
    assert "scaled" in resized
    assert float(result.splitlines()[-1]) > 0.95
    assert cluster.kubectl.items("elasticjobs") == []
