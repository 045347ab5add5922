"""Builds what a release publishes. Each function writes into `dist` and returns the files it wrote."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from hack import images
from hack.images.recipe import ARCHITECTURES, EPOCH
from hack.release import archive, oci
from hack.release.version import ROOT
from hack.steps import StepError, Steps, run_logged

DISTRIBUTIONS = ("trainer-runtime", "api", "operator", "client")
RUNTIME_IMAGES = {f"runtime-{architecture}": architecture for architecture in ARCHITECTURES}
"""Image -> architecture. The trainer image is an example and not published: users bring their own."""
TOOLS = Path(__file__).parent
"""Holds the go.mod that pins the tools of a release."""
NAMESPACE = "elasticjob-system"
KUBERNETES = "1.36"
"""The version that install.yaml is rendered for; it runs on every version that the chart supports."""

_INSTALL_HEAD = f"""\
# ElasticJob {{version}}: kubectl apply --server-side -f install.yaml
# The chart elasticjob-{{version}}.tgz with its defaults. To change any of them, install the chart instead.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
---
"""


def distributions(dist: Path, log: Path) -> list[Path]:
    """A wheel and an sdist of each distribution, with the license. The same sources give the same bytes.

    Raises StepError.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    with tempfile.TemporaryDirectory() as folder:
        for name in DISTRIBUTIONS:
            copy = Path(folder) / name  # setuptools leaves build/ and *.egg-info in the sources
            shutil.copytree(ROOT / name, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
            shutil.copy(ROOT / "LICENSE", copy)
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(copy)]
            run_logged(command, log, env=environment)
    sdists = [*dist.glob("elasticjob*.tar.gz")]
    for sdist in sdists:
        archive.make_reproducible(sdist, EPOCH)
    return sorted([*dist.glob("elasticjob*.whl"), *sdists])


def chart(dist: Path, version: str, registry: str, log: Path) -> list[Path]:
    """The packaged chart and install.yaml, with images from `registry` if it is not empty. Raises StepError."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "elasticjob"
        shutil.copytree(ROOT / "charts/elasticjob", copy)
        values = copy / "values.yaml"
        values.write_text(with_registry(values.read_text(encoding="utf-8"), registry), encoding="utf-8")
        _helm(["package", str(copy), "--destination", str(dist)], log)
    packaged = dist / f"elasticjob-{version}.tgz"
    archive.make_reproducible(packaged, EPOCH)
    options = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--skip-tests"]
    rendered = _helm(["template", "elasticjob", str(packaged), *options], log)
    manifest = dist / "install.yaml"
    manifest.write_text(_INSTALL_HEAD.format(version=version) + rendered, encoding="utf-8")
    return [packaged, manifest]


def with_registry(values: str, registry: str) -> str:
    """The chart's values.yaml with `registry` before the name of each of our images.

    >>> with_registry("image:\\n  repository: elasticjob-operator\\n", "ghcr.io/example")
    'image:\\n  repository: ghcr.io/example/elasticjob-operator\\n'
    """
    if not registry:
        return values
    return re.sub(r"(?m)^( *repository: )(elasticjob-)", rf"\g<1>{registry.rstrip('/')}/\g<2>", values)


def image_archives(dist: Path, version: str, registry: str, steps: Steps) -> dict[Path, Path]:
    """Archive of an image -> what it was made from: a docker-archive for this machine's architecture.

    The operator's is such an archive too; the runtime's is an OCI layout with an image for every architecture. Raises
    StepError.
    """
    built = images.build(["operator", *RUNTIME_IMAGES], steps)
    prefix = f"{registry.rstrip('/') or 'docker.io/library'}/elasticjob-"
    operator, runtime = (dist / f"elasticjob-{name}-{version}.image.tar" for name in ("operator", "runtime"))
    archive.retag(built["operator"], operator, f"{prefix}operator:{version}")
    runtimes = {architecture: built[name] for name, architecture in RUNTIME_IMAGES.items()}
    oci.write_index(runtimes, runtime, f"{prefix}runtime:{version}", EPOCH)
    return {operator: built["operator"], runtime: next(iter(runtimes.values()))}


def sboms(archives: Mapping[Path, Path], log: Path) -> list[Path]:
    """The contents of each image as CycloneDX: Debian's packages and Python's. `archives`: as from `image_archives`.
    Raises StepError."""
    written = []
    for image, built in archives.items():
        target = image.with_name(image.name.removesuffix(".image.tar") + ".cdx.json")
        source = ["scan", f"docker-archive:{built}", "--source-name", image.name]
        command = ["go", "-C", str(TOOLS), "tool", "syft", *source, "--output", f"cyclonedx-json={target}"]
        run_logged(command, log, env={**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"})
        written.append(target)
    return written


def checksums(dist: Path, files: Iterable[Path]) -> Path:
    """SHA256SUMS of `files`, as `sha256sum --check` reads it."""
    target = dist / "SHA256SUMS"
    lines = []
    for path in sorted(files, key=lambda path: path.name):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    target.write_text("".join(lines), encoding="utf-8")
    return target


def _helm(arguments: list[str], log: Path) -> str:
    """Returns what it printed. Raises StepError."""
    command = [sys.executable, "-m", "hack.cluster", "helm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ helm {' '.join(arguments)}\n{done.stderr}")
    if done.returncode:
        raise StepError(f"helm {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
