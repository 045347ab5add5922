"""Builds with buildah: no daemon and no registry, with a store in the cache. Needs root."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from pathlib import Path

from hack import debian
from hack.images import base, machine
from hack.images.recipe import EPOCH, Context, reference
from hack.steps import Step, StepError, Steps, run_logged

SHARED_STAGE = "build"
KEPT_STAGES = {
    "operator": ("operator-dependencies",),
    "runtime": (),
    "plain": ("torch",),
    "frameworks": ("torch", "frameworks-files"),
    "trainer": ("torch", "digits"),
}
"""Stages of the Dockerfile that take long and seldom change. They are named, so that `tidy` keeps them."""


class Buildah:
    """A store of layers and images below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Mount counts must not survive a boot, so they are not kept in the cache.
        places = ("--root", str(folder / "storage"), "--runroot", "/run/elasticjob-images")
        self._command = ["buildah", *places, "--storage-driver", _driver(folder)]
        self._logs = folder / "logs"
        self._settings = folder / "settings"
        self._shared = threading.Lock()

    def prepare(self, steps: Steps) -> str:
        """Builds the base image (or uses the one that `BASE_IMAGE` names) and returns what it is built from, for the
        images' keys.

        Raises StepError.
        """
        if os.geteuid() != 0:
            raise StepError("building images without a Docker engine needs root: run this as root, or start Docker")
        debian.install(["buildah", "debootstrap"], steps, "to build images without Docker")
        base.remove_leftovers(self._folder)
        run_logged([*self._command, "rm", "--all"], self._logs / "store.log")
        named = os.environ.get("BASE_IMAGE")
        if named:
            return named
        key = base.base_key()
        name = f"localhost/elasticjob-base:{key}"
        archive = self._folder / f"base-{key}.tar"
        if not archive.exists():
            with steps.step("Build the base image", "Debian from packages, so that no registry is needed", 37) as step:
                base.make_base(archive, self._logs / "base.log", step)
        if not self._has(name):
            with steps.step("Import the base image", "", 4):
                self._import_base(archive, name)
        return name

    def build(self, context: Context, base_image: str, archive: Path, step: Step) -> None:
        """Builds one target and writes it to `archive` (docker-archive: uncompressed, so quick to write and to import).

        Raises StepError.
        """
        log = self._logs / f"{context.name}.log"
        log.unlink(missing_ok=True)
        mounts = machine.write_build_settings(self._settings / context.name, base.SUITE)
        options = [
            *("--isolation", "chroot", "--layers", "--timestamp", str(EPOCH), "--pull=false"),
            *("--build-arg", f"BASE_IMAGE={base_image}", "--build-arg", "PIP_CONFIG_FILE=/mnt/pip.conf"),
            *(word for key, value in context.arguments.items() for word in ("--build-arg", f"{key}={value}")),
            *(word for here, inside in mounts for word in ("--volume", f"{here}:{inside}:ro")),
        ]

        def build(target: str, tag: str) -> None:
            words = ("build", *options, "--target", target, "--tag", tag, str(context.folder))
            run_logged([*self._command, *words], log, lambda line: _show(step, line))

        with self._shared:  # images built at the same time find it done
            build(SHARED_STAGE, _stage_reference(SHARED_STAGE))
        for stage in KEPT_STAGES[context.target]:
            build(stage, _stage_reference(stage))
        name = reference(context.name)
        build(context.target, name)
        step.say("writing the archive")
        part = archive.with_suffix(".part")
        part.unlink(missing_ok=True)
        run_logged([*self._command, "push", "--quiet", name, f"docker-archive:{part}:{name}"], log)
        part.replace(archive)

    def tidy(self) -> None:
        """Removes untagged images and their layers. Buildah compares every image with each line of the Dockerfile, so
        old ones slow it down."""
        run_logged([*self._command, "rmi", "--prune", "--force"], self._logs / "store.log")

    def push(self, archive: Path, name: str, target: str, step: Step) -> None:
        """Pushes the image `name` of an archive to a registry as `target`. Raises StepError."""
        log = self._logs / "push.log"
        run_logged([*self._command, "pull", "--quiet", f"docker-archive:{archive}"], log, step.say)
        run_logged([*self._command, "push", name, f"docker://{target}"], log, step.say)

    def _has(self, name: str) -> bool:
        return bool(machine.output_of(*self._command, "images", "--quiet", "--filter", f"reference={name}").strip())

    def _import_base(self, archive: Path, name: str) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="base-") as folder:
            os.link(archive, Path(folder) / "base.tar")
            (Path(folder) / "Dockerfile").write_text('FROM scratch\nADD base.tar /\nCMD ["bash"]\n', encoding="utf-8")
            options = ["--timestamp", str(EPOCH), "--isolation", "chroot", "--tag", name]
            run_logged([*self._command, "build", *options, folder], self._logs / "base.log")


def _stage_reference(stage: str) -> str:
    return f"localhost/elasticjob-stage-{stage}:dev"


def _show(step: Step, line: str) -> None:
    match = re.match(r"(?:\[\d+/\d+\] )?STEP (\d+)/(\d+): (.*)", line)
    if match:
        step.say(f"{match[1]}/{match[2]} {match[3][:80]}")
    elif re.match(r"(Get:|Unpacking |Setting up |Collecting )", line):
        step.say(line[:80])


def _driver(folder: Path) -> str:
    """overlay, or vfs (slower, bigger) if the cache's file system is itself an overlay. Cached, because a store has one
    driver."""
    mark = folder / "driver"
    if not mark.exists():
        folder.mkdir(parents=True, exist_ok=True)
        kind = machine.output_of("stat", "--file-system", "--format=%T", str(folder)).strip()
        mark.write_text("vfs" if kind == "overlayfs" else "overlay", encoding="utf-8")
    return mark.read_text(encoding="utf-8").strip()
