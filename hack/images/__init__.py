"""Container images from the project's Dockerfile, with or without Docker.

    from hack.images import build
    archives = build(["operator", "trainer"])      # {"operator": Path(".../operator.tar"), ...}

Archives are in the cache outside the checkout, keyed by everything that goes into them, so that what is unchanged is
not built again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from hack.images.buildah import Buildah
from hack.images.docker import Docker, docker_runs
from hack.images.recipe import INPUTS, Context, make_context, reference
from hack.steps import CACHE, StepError, Steps, concurrently

__all__ = ["NAMES", "StepError", "build", "builder", "reference"]

FOLDER = CACHE / "images"
NAMES = ("operator", "runtime", "trainer")
"""The images that users get, for this machine's architecture. `plain` and `frameworks`, for tests, have Python, torch
and other people's packages, and nothing of ours; `runtime-arm64` and its like are for releases."""

_SECONDS = {"operator": 40.0, "runtime": 20.0, "plain": 120.0, "frameworks": 60.0, "trainer": 120.0}
"""How long each took on 2 cores with an empty cache, built concurrently."""
_WHY = {
    "operator": "kopf, its dependencies and the operator",
    "runtime": "the runtime alone, to be copied into any image",
    "plain": "CPU torch with gloo and nothing of ours, for tests",
    "frameworks": "torch with what the examples use, for their tests",
    "trainer": "CPU torch with gloo, the runtime and the examples",
}


Builder = Buildah | Docker


def builder(environment: Mapping[str, str] = os.environ) -> Builder:
    """The builder to use: buildah for the test cluster, because it needs no registry; Docker for other clusters if its
    engine runs, and without root.

    `IMAGE_BUILDER=buildah|docker` overrides this. Raises StepError for any other value.
    """
    wanted = environment.get("IMAGE_BUILDER", "")
    if wanted not in {"", "buildah", "docker"}:
        raise StepError(f"IMAGE_BUILDER={wanted}: must be buildah or docker")
    if not wanted:
        docker_first = environment.get("CLUSTER", "own") != "own" or os.geteuid() != 0
        wanted = "docker" if docker_first and docker_runs() else "buildah"
    return Docker(FOLDER / "docker") if wanted == "docker" else Buildah(FOLDER / "buildah")


def build(names: Sequence[str] = NAMES, steps: Steps | None = None) -> dict[str, Path]:
    """Builds images and returns name -> archive, a docker-archive tar that `ctr images import` and `docker load` take.

    Raises StepError with the log's last lines, KeyError for an unknown name.
    """
    unknown = [name for name in names if name not in INPUTS]
    if unknown:
        raise KeyError(f"unknown image {', '.join(unknown)}: must be one of {', '.join(INPUTS)}")
    if steps is None:
        with Steps() as own:
            return build(names, own)
    chosen = builder()
    with _only_one(steps):
        base_image = chosen.prepare(steps)
        contexts = [make_context(name, FOLDER / "contexts" / name, base_image) for name in names]
        archives = {context.name: FOLDER / context.key / f"{context.name}.tar" for context in contexts}
        missing = [context for context in contexts if not archives[context.name].exists()]
        concurrently(
            *(partial(_build_one, context, archives[context.name], chosen, base_image, steps) for context in missing)
        )
        for name, archive in archives.items():
            archive.touch()
            _remove_older(name, keep=2)
        if missing:
            chosen.tidy()
    return archives


def _build_one(context: Context, archive: Path, using: Builder, base_image: str, steps: Steps) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with steps.step(f"Build image {context.name}", _WHY[context.target], _SECONDS[context.target]) as step:
        using.build(context, base_image, archive, step)


def _remove_older(name: str, keep: int) -> None:
    """Keeps only the newest archives of one image: each is as large as the image."""
    archives = sorted(FOLDER.glob(f"*/{name}.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for archive in archives[keep:]:
        archive.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            archive.parent.rmdir()


@contextlib.contextmanager
def _only_one(steps: Steps) -> Iterator[None]:
    """One build at a time on this machine: the second one reuses the first one's layers."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with steps.step("Wait for another image build on this machine"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
