"""Stock Kueue in the test cluster: its manager is built from Go's module proxy, and installed from the chart that the
same module contains, as an administrator would.

`kueue-manager/go.mod` pins the version. Its `go.sum` began as a copy of Kueue's own, because the public checksum
database lacks one of Kueue's dependencies (sigs.k8s.io/scheduler-library v0.1.0-alpha1): after a change of the version,
copy Kueue's again and run `go mod tidy`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hack.steps import Steps

from .lifecycle import kubectl, load_image, require_cluster
from .oci import write_archive
from .output import ClusterError, run
from .programs import program, program_of_module, source_of_module
from .settings import KUBECONFIG, MODULE_FOLDER

NAMESPACE = "kueue-system"
RELEASE = "kueue"
MODULE = "sigs.k8s.io/kueue"
FOLDER = MODULE_FOLDER / "kueue-manager"

BLOCKING_KINDS = (
    "localqueues",
    "clusterqueues",
    "resourceflavors",
    "workloadpriorityclasses",
    "topologies",
    "admissionchecks",
)
"""Kinds that only Kueue's manager can finish deleting, in the order that lets it."""


def required_version(go_mod: str, module: str = MODULE) -> str:
    """The version of a module that a `go.mod` requires. Raises ClusterError if it names none.

    >>> required_version("require sigs.k8s.io/kueue v0.19.2")
    'v0.19.2'
    """
    found = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise ClusterError(f"go.mod requires no {module}")
    return found[1]


def install() -> None:
    """Installs Kueue into the cluster that is up, or does nothing if it is installed. Builds it the first time."""
    require_cluster()
    version = required_version((FOLDER / "go.mod").read_text())
    with Steps() as steps:
        built = _build(version, steps)
    load_image(built / "image.tar")
    with Steps() as steps, steps.step(f"Install Kueue {version} with Helm", f"namespace {NAMESPACE}", 30):
        _helm(
            *("upgrade", "--install", RELEASE, str(built / "chart"), "--values", str(FOLDER / "values.yaml")),
            *("--set", f"controllerManager.manager.image.tag={version}"),
            *("--create-namespace", "--wait", "--timeout", "3m"),
        )


def uninstall() -> None:
    """Removes Kueue and every queue, flavor and priority class. Its objects go first, while it runs: what has one of
    its finalizers would keep Helm, which removes the CRDs too, waiting forever."""
    require_cluster()
    if RELEASE not in _helm("list", "--short").split():
        return
    for kind in BLOCKING_KINDS:
        kubectl("delete", f"{kind}.kueue.x-k8s.io", "--all", "--all-namespaces", "--timeout=60s")
    _helm("uninstall", RELEASE, "--wait", "--timeout", "2m")
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")


def _build(version: str, steps: Steps) -> Path:
    """The cache's folder with the image and the chart, so that a later run needs no sources."""
    flags = ("-trimpath", "-ldflags", f"-s -w -X {MODULE}/pkg/version.GitVersion={version}")
    with steps.step(f"Build Kueue {version}", "from source, once per version", 200):
        manager = program_of_module(FOLDER, f"{MODULE}/cmd/kueue", "manager", flags)
        folder = manager.parents[1]
        if not (folder / "chart").exists():
            write_archive(folder / "image.tar", f"localhost/kueue:{version}", {"/manager": manager}, ["/manager"])
            aside = folder / "chart.unfinished"
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(source_of_module(MODULE, FOLDER) / "charts" / "kueue", aside, copy_function=shutil.copyfile)
            aside.rename(folder / "chart")
    return folder


def _helm(*words: str) -> str:
    return run([program("helm"), "--kubeconfig", KUBECONFIG, "--namespace", NAMESPACE, *words])
