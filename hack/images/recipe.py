"""The inputs of each image, and a key that changes with them."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1767225600
"""Time of every file in every image (2026-01-01, UTC): the same sources and packages give the same bytes."""

_RUNTIME = ("trainer-runtime/README.md", "trainer-runtime/pyproject.toml", "trainer-runtime/src")
_RUNTIME_IMAGE = ("Dockerfile", "trainer-runtime/launch.py", *_RUNTIME)
ARCHITECTURES = ("amd64", "arm64")
"""Architectures for which a release has the runtime image."""
INPUTS: Mapping[str, tuple[str, ...]] = {
    "operator": (
        "Dockerfile",
        "api/README.md",
        "api/pyproject.toml",
        "api/src",
        "operator/README.md",
        "operator/pyproject.toml",
        "operator/requirements.txt",
        "operator/src",
        *_RUNTIME,
    ),
    "runtime": _RUNTIME_IMAGE,
    **{f"runtime-{architecture}": _RUNTIME_IMAGE for architecture in ARCHITECTURES},
    "plain": ("Dockerfile",),
    "frameworks": ("Dockerfile", "constraints.txt"),
    "trainer": ("Dockerfile", "constraints.txt", "examples/digits", *_RUNTIME),
}
"""Image -> the files and folders that it copies. An image is a target of the Dockerfile, or the runtime for one
architecture."""

_LEFT_OUT = ("__pycache__", "*.pyc", "*.egg-info", ".*", "build", "dist")


def published_base(dockerfile: Path = ROOT / "Dockerfile") -> str:
    """The base image that the Dockerfile names: a published Debian, by digest."""
    (found,) = re.findall(r"(?m)^ARG BASE_IMAGE=(\S+)$", dockerfile.read_text(encoding="utf-8"))
    return str(found)


def reference(name: str) -> str:
    """The name under which an image is known in a cluster.

    >>> reference("trainer")
    'localhost/elasticjob-trainer:dev'
    """
    return f"localhost/elasticjob-{name}:dev"


@dataclasses.dataclass(frozen=True)
class Context:
    """A copy of one image's inputs, so that a change of the checkout during the build cannot differ from what was
    hashed."""

    name: str
    folder: Path
    key: str

    @property
    def target(self) -> str:
        """The target of the Dockerfile."""
        return self.name.partition("-")[0]

    @property
    def arguments(self) -> Mapping[str, str]:
        """Build arguments.

        >>> Context("runtime-arm64", Path(), "").arguments
        {'RUNTIME_ARCH': 'arm64'}
        """
        _, _, architecture = self.name.partition("-")
        return {"RUNTIME_ARCH": architecture} if architecture else {}


def make_context(name: str, folder: Path, base: str, root: Path = ROOT) -> Context:
    """Copies the inputs of image `name` to `folder` (emptied first) and hashes them together with `base`, which names
    the base image.

    Raises FileNotFoundError if an input is missing.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for item in INPUTS[name]:
        source, target = root / item, folder / item
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_LEFT_OUT), copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, target)
    return Context(name, folder, key_of(folder, name, base, str(EPOCH)))


def key_of(folder: Path, *words: str) -> str:
    """A short hash of the words and of every file below `folder` with its path.

    Sets one mode for all files and one for all folders, because builders hash modes too and checkouts differ in them.
    """
    digest = hashlib.sha256("\0".join(words).encode())
    for path in sorted(folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"\0{path.relative_to(folder)}\0{content}".encode())
    return digest.hexdigest()[:16]
