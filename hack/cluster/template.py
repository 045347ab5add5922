"""The template that nodes are copied from: a containerd folder with every image imported, on which no node runs.

Importing a large image takes containerd many seconds of unpacking. So it is imported once, here; a node that starts
gets a hard-linked copy of the whole folder, and one that runs gets hard links to the new layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hack.steps import Steps

from . import cgroups
from .containerd import Containerd, wait_for_containerd
from .oci import read_archive, write_stored_image
from .output import run
from .processes import start_daemon
from .programs import program, programs_folder

GROUP = "template"
RECORD = "images.json"
"""In a containerd folder: image name -> its archive's digest and, per unpacked layer, chain id and folder."""

_PRIVATE_RUN = 'mount -t tmpfs tmpfs /run && exec "$@"'
_NOT_FOR_IMPORTS = [
    "io.containerd.cri.v1.runtime",
    "io.containerd.cri.v1.images",
    "io.containerd.grpc.v1.cri",
    "io.containerd.nri.v1.nri",
]


def template_folder() -> Path:
    """Next to the programs, because its format depends on their versions."""
    return programs_folder().parent / "template"


def loaded_images(containerd_folder: Path) -> dict[str, Any]:
    """The images that were imported into a containerd folder, as in RECORD."""
    try:
        loaded: dict[str, Any] = json.loads((containerd_folder / RECORD).read_text())
    except FileNotFoundError:
        return {}
    return loaded


def import_into_template(archives: Sequence[Path], steps: Steps) -> None:
    """Imports what is not in the template yet. A killed import is completed by the next one."""
    known = {name: record["digest"] for name, record in loaded_images(template_folder()).items()}
    images = {archive: read_archive(archive) for archive in archives}
    missing = {archive: image for archive, image in images.items() if known.get(image.name) != image.digest}
    if not missing:
        return
    names = ", ".join(image.name for image in missing.values())
    with steps.step(f"Unpack {names} for the nodes", "once, not on every node"), _running() as containerd:
        for archive, image in missing.items():
            containerd.import_archive(archive)
            stored = containerd.stored_image(image.name)
            write_stored_image(_archive_without_layers(image.digest), stored)
            _note_loaded(
                template_folder(), image.name, {"digest": image.digest, "layers": containerd.layer_folders(stored)}
            )


def copy_template(folder: Path) -> None:
    """Makes `folder` a copy of the template: hard links for what never changes, real copies of the databases."""
    run(["rm", "-rf", folder])
    folder.parent.mkdir(parents=True, exist_ok=True)
    run(["cp", "-al", template_folder(), folder])
    for database in template_folder().glob("*/*.db"):
        run(["cp", "--remove-destination", database, folder / database.relative_to(template_folder())])


def add_image(name: str, containerd: Containerd, containerd_folder: Path) -> None:
    """Gives a running containerd an image of the template: 0.6 s for 700 MB, where importing the archive takes 9 s per
    node."""
    record = loaded_images(template_folder())[name]
    if loaded_images(containerd_folder).get(name) == record:
        return
    present, parent = containerd.snapshots(), None
    for chain_id, folder in record["layers"]:
        if chain_id not in present:
            containerd.add_layer(chain_id, parent, template_folder() / folder)
        parent = chain_id
    containerd.import_archive(_archive_without_layers(record["digest"]))
    containerd.let_kubelet_find(name)
    _note_loaded(containerd_folder, name, record)


def _archive_without_layers(digest: str) -> Path:
    return template_folder() / "without-layers" / f"{digest.partition(':')[2]}.tar"


def _note_loaded(containerd_folder: Path, name: str, record: dict[str, Any]) -> None:
    aside = containerd_folder / f"{RECORD}.part"
    aside.unlink(missing_ok=True)
    aside.write_text(json.dumps({**loaded_images(containerd_folder), name: record}, indent=1))
    aside.rename(containerd_folder / RECORD)  # never written in place: copies of the template share the file


@contextmanager
def _running() -> Iterator[Containerd]:
    """A containerd on the template, in a mount namespace of its own."""
    folder = template_folder()
    folder.mkdir(parents=True, exist_ok=True)
    log, config = folder.parent / "template.log", folder.parent / "template.toml"
    disabled = json.dumps(_NOT_FOR_IMPORTS)
    config.write_text(f'version = 3\nroot = "{folder}"\nstate = "/run/containerd"\ndisabled_plugins = {disabled}\n')
    cgroups.kill(GROUP)
    shell = ("unshare", "--mount", "sh", "-c", _PRIVATE_RUN, "sh")
    start_daemon([*shell, program("containerd"), "--config", config], log, cgroups.create(GROUP))
    try:
        yield wait_for_containerd(GROUP, log, folder, folder)
    finally:
        cgroups.kill(GROUP)
        cgroups.remove(GROUP)
