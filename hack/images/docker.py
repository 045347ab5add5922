"""Builds with Docker: base images come from its registry, and it manages its own names and caches."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hack.images.recipe import EPOCH, Context, published_base, reference
from hack.steps import Step, Steps, run_logged


def docker_runs() -> bool:
    """Whether a Docker engine answers."""
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


class Docker:
    """The Docker engine that the command line reaches."""

    def __init__(self, folder: Path) -> None:
        self._logs = folder / "logs"

    def prepare(self, _steps: Steps) -> str:
        return os.environ.get("BASE_IMAGE") or published_base()

    def build(self, context: Context, base_image: str, archive: Path, step: Step) -> None:
        """Builds one target and saves it to `archive`. Raises StepError."""
        log = self._logs / f"{context.name}.log"
        log.unlink(missing_ok=True)
        arguments = {"BASE_IMAGE": base_image, "SOURCE_DATE_EPOCH": EPOCH, **context.arguments}
        command = [
            *("docker", "build", "--progress=plain", "--target", context.target, "--tag", reference(context.name)),
            *(word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")),
            str(context.folder),
        ]
        run_logged(command, log, lambda line: step.say(line[:80]) if line.startswith("#") else None)
        step.say("writing the archive")
        part = archive.with_suffix(".part")
        run_logged(["docker", "save", "--output", str(part), reference(context.name)], log)
        part.replace(archive)

    def tidy(self) -> None:
        """Does nothing: Docker manages its own cache."""

    def push(self, archive: Path, name: str, target: str, step: Step) -> None:
        """Pushes the image `name` of an archive to a registry as `target`. Raises StepError."""
        log = self._logs / "push.log"
        run_logged(["docker", "load", "--input", str(archive)], log, step.say)
        run_logged(["docker", "tag", name, target], log)
        run_logged(["docker", "push", target], log, step.say)
