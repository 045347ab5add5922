"""The table of versions in docs/reference/compatibility.md, read from the settings of the tests."""

from __future__ import annotations

import re
from typing import Any

import tomllib
import yaml

from hack.checks import ROOT
from hack.cluster.settings import KUBERNETES_VERSION

ETCD_SERVERS = "tests/contract/etcd_servers.py"
DEBIAN = {"trixie": {"python": "3.13", "torch": "2.6"}}
"""What the images of the end-to-end tests contain, by the release of Debian that they are built from."""

TABLE = """\
| | required | every run of the tests uses | the CI workflow adds |
|---|---|---|---|
| Python, in training images | {runtime_python} or newer | {dev_python} (development), {image_python} (images of the end-to-end tests) | {ci_python} |
| Python, for the client | {client_python} or newer | {dev_python} | {ci_client_python} |
| torch | any for `elasticrun`; 2.6 or newer for [torchrun with our rendezvous](../guides/torchrun.md) and for [sessions](../explanation/in-place.md); 2.7 for [sharded models](../guides/checkpoints.md#sharded-models-fsdp2) on CPUs | {torch} (development), {image_torch} (images) | {ci_torch} |
| Kubernetes | {kubernetes_required} or newer | {kubernetes}, with containerd {containerd} | {ci_kubernetes}, with kind |
| etcd | 3.4 or newer; one that jobs share, with users: 3.4.44, 3.5.30, 3.6.11 or newer | {etcd} | |
| Helm | 3 | {helm} | |
"""


def table() -> str:
    """Reads the files that set the versions."""
    workflow = yaml.safe_load(_read(".github/workflows/ci.yaml"))["jobs"]
    (debian,) = re.findall(r"^ARG BASE_IMAGE=\S*debian:(\w+)-slim\b", _read("Dockerfile"), re.MULTILINE)
    python = _matrix(workflow, "unit", "python")
    client_python = _python_of("client")
    return TABLE.format(
        runtime_python=_python_of("trainer-runtime"),
        client_python=client_python,
        dev_python=_development_python(workflow),
        image_python=DEBIAN[debian]["python"],
        image_torch=DEBIAN[debian]["torch"],
        torch=_constraint("torch"),
        ci_python=", ".join(python),
        ci_client_python=", ".join(item for item in python if _number(item) >= _number(client_python)),
        ci_torch=", ".join(_matrix(workflow, "torch", "torch")),
        kubernetes_required=yaml.safe_load(_read("charts/elasticjob/Chart.yaml"))["kubeVersion"]
        .strip(">=")
        .removesuffix(".0-0"),
        kubernetes=KUBERNETES_VERSION.removeprefix("v"),
        containerd=_go("github.com/containerd/containerd/v2"),
        ci_kubernetes=", ".join(item.removeprefix("v") for item in _matrix(workflow, "kind", "kubernetes")),
        etcd=" and ".join(_etcd()),
        helm=_go("helm.sh/helm/v3"),
    )


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _matrix(workflow: dict[str, Any], job: str, name: str) -> list[str]:
    return [str(item) for item in workflow[job]["strategy"]["matrix"][name]]


def _development_python(workflow: dict[str, Any]) -> str:
    (version,) = (
        step["with"]["python-version"] for step in workflow["all"]["steps"] if "setup-python" in step.get("uses", "")
    )
    return str(version)


def _python_of(folder: str) -> str:
    return str(tomllib.loads(_read(f"{folder}/pyproject.toml"))["project"]["requires-python"]).removeprefix(">=")


def _constraint(package: str) -> str:
    (version,) = re.findall(rf"^{package}==(.+)$", _read("constraints.txt"), re.MULTILINE)
    return str(version)


def _go(module: str) -> str:
    (version,) = re.findall(rf"^\s*{re.escape(module)} v(\S+)", _read("hack/cluster/go.mod"), re.MULTILINE)
    return str(version)


def _etcd() -> list[str]:
    (versions,) = re.findall(r"^VERSIONS = \((.*)\)$", _read(ETCD_SERVERS), re.MULTILINE)
    return re.findall(r'"([\d.]+)"', versions)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
