"""The images that every node has from the start, and the template that nodes are copied from.

Unpacking a large image takes containerd many seconds per node. So an image is imported once into a template (a containerd folder on which
no node runs); a node starts from a hard-linked copy of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.steps import Steps

from . import cgroups
from .oci import ArchivedImage, read_archive, write_archive
from .output import run
from .processes import start_daemon, wait_for
from .programs import program, programs_folder, source_of_module

PAUSE = "localhost/pause:1"
ETCD = "localhost/etcd:3.6.8"
SOCKET = "run/containerd/containerd.sock"
"""Below the root of a process in the mount namespace of that containerd."""

_PRIVATE_RUN = 'mount -t tmpfs tmpfs /run && exec "$@"'


def own_archives(steps: Steps) -> list[Path]:
    """Archives of the images that the cluster itself brings, made from the built programs where they do not exist yet."""
    folder = programs_folder().parent / "images"
    pause, etcd = folder / "pause.tar", folder / "etcd.tar"
    if not (pause.exists() and etcd.exists()):
        with steps.step("Make the images pause and etcd", "what every node has from the start", 2):
            folder.mkdir(parents=True, exist_ok=True)
            write_archive(pause, PAUSE, {"/pause": _compile_pause(folder)}, ["/pause"], user="65535:65535")
            programs = {f"/usr/local/bin/{name}": program(name) for name in ("etcd", "etcdctl")}
            write_archive(etcd, ETCD, programs, ["/usr/local/bin/etcd"])
    return [pause, etcd]


def template_folder() -> Path:
    """The containerd folder that nodes are copied from. With the programs, because its format is theirs."""
    return programs_folder().parent / "template"


def import_into_template(archives: Sequence[Path], steps: Steps) -> None:
    """Imports what is not in the template yet. What a killed import leaves there is finished by the next one."""
    images = {archive: read_archive(archive) for archive in archives}
    known = loaded_images(template_folder())
    missing = {archive: image for archive, image in images.items() if known.get(image.name) != image.digest}
    if not missing:
        return
    names = ", ".join(image.name for image in missing.values())
    with steps.step(f"Import {names} into the node template", "unpacked once, not on every node"), _template_containerd() as process:
        for archive, image in missing.items():
            import_archive(process, archive)
            note_loaded(template_folder(), image)


def import_archive(process: int, archive: Path) -> None:
    """Imports an archive into the containerd whose mount namespace `process` is in, and frees what it replaced."""
    address = f"/proc/{process}/root/{SOCKET}"
    run([program("ctr"), "--address", address, "--namespace", "k8s.io", "images", "import", "--digests=false", archive])
    run([program("ctr"), "--address", address, "--namespace", "k8s.io", "content", "prune", "references"])


def copy_template(folder: Path) -> None:
    """Makes `folder` a copy of the template: hard links for what never changes, real copies of the databases."""
    run(["rm", "-rf", folder])
    folder.parent.mkdir(parents=True, exist_ok=True)
    run(["cp", "-al", template_folder(), folder])
    for database in template_folder().glob("*/*.db"):
        run(["cp", "--remove-destination", database, folder / database.relative_to(template_folder())])


def loaded_images(containerd_folder: Path) -> dict[str, str]:
    """Name -> digest of the images that were imported into a containerd folder."""
    try:
        loaded: dict[str, str] = json.loads((containerd_folder / "images.json").read_text())
    except FileNotFoundError:
        return {}
    return loaded


def note_loaded(containerd_folder: Path, image: ArchivedImage) -> None:
    """Remembers that the image was imported."""
    aside = containerd_folder / "images.json.part"
    aside.write_text(json.dumps({**loaded_images(containerd_folder), image.name: image.digest}, indent=1))
    aside.rename(containerd_folder / "images.json")  # never written in place: copies of the template share the file


@contextmanager
def _template_containerd() -> Iterator[int]:
    """A containerd on the template, in a mount namespace of its own. Gives a process id in it."""
    folder = template_folder()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.parent / "template.log"
    config = folder.parent / "template.toml"
    config.write_text(f'version = 3\nroot = "{folder}"\nstate = "/run/containerd"\ndisabled_plugins = {_NOT_FOR_IMPORTS}\n')
    command = ["unshare", "--mount", "sh", "-c", _PRIVATE_RUN, "sh", str(program("containerd")), "--config", str(config)]
    cgroups.kill("template")
    start_daemon(command, log, cgroups.create("template"))
    try:
        yield wait_for_containerd("template", log)
    finally:
        cgroups.kill("template")
        cgroups.remove("template")


def wait_for_containerd(group: str, log: Path) -> int:
    """Waits until the containerd in this cgroup answers, and returns a process id in its mount namespace."""

    def answering() -> int:
        return next((process for process in sorted(cgroups.processes(group)) if _answers(process)), 0)

    return wait_for(answering, lambda: bool(cgroups.processes(group)), "containerd", log)


def _answers(process: int) -> bool:
    if not Path(f"/proc/{process}/root/{SOCKET}").exists():
        return False
    try:
        run([program("ctr"), "--address", f"/proc/{process}/root/{SOCKET}", "version"])
    except RuntimeError:
        return False
    return True


def _compile_pause(folder: Path) -> Path:
    source = source_of_module("k8s.io/kubernetes") / "build" / "pause" / "linux" / "pause.c"
    target = folder / "pause"
    run(["gcc", "-Os", "-static", "-DVERSION=test", "-o", target, source])
    shutil.copymode(program("etcd"), target)
    return target


_NOT_FOR_IMPORTS = (
    '["io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]'
)
