"""A running containerd, spoken to with `ctr` through the mount namespace that it is in."""

from __future__ import annotations

import json
from pathlib import Path

from . import cgroups
from .oci import StoredImage, chain_ids
from .output import ClusterError, run
from .processes import wait_for
from .programs import program

NAME = "containerd"
SOCKET = "run/containerd/containerd.sock"
BLOBS = Path("io.containerd.content.v1.content/blobs/sha256")


class Containerd:
    """The containerd whose mount namespace `process` is in; its files are in `folder`, seen from here, and at `root`,
    seen from there."""

    def __init__(self, process: int, folder: Path, root: Path) -> None:
        self._address = f"/proc/{process}/root/{SOCKET}"
        self._folder = folder
        self._root = root

    def answers(self) -> bool:
        if not Path(self._address).exists():
            return False
        try:
            self._ctr("version")
        except ClusterError:
            return False
        return True

    def import_archive(self, archive: Path) -> None:
        """Imports an image archive, releases the previous image of that name, and keeps only the unpacked form."""
        self._ctr("images", "import", "--local", "--discard-unpacked-layers", str(archive))
        self._ctr("content", "prune", "references")

    def let_kubelet_find(self, name: str) -> None:
        """Makes containerd's CRI part store an image under its ID too, which image volumes need. It does so for images
        without its label, and an import keeps the label of the previous image of that name."""
        self._ctr("images", "label", name, "io.cri-containerd.image=")

    def stored_image(self, name: str) -> StoredImage:
        """What this containerd has under that name."""
        line = self._ctr("images", "list", f"name=={name}").splitlines()[1].split()
        manifest = self._blob(line[2])
        return StoredImage(name, line[1], manifest, self._blob(json.loads(manifest)["config"]["digest"]))

    def layer_folders(self, image: StoredImage) -> list[tuple[str, str]]:
        """Chain id and folder (relative to containerd's own) of each of the image's unpacked layers, lowest first."""
        chain = chain_ids(image.config)
        self._remove_snapshot("look")
        mount = json.loads(self._ctr("snapshots", "view", "--mounts", "look", chain[-1]))[0]
        self._remove_snapshot("look")
        if mount["Type"] == "bind":
            folders = [mount["Source"]]
        else:
            folders = (
                next(option for option in mount["Options"] if option.startswith("lowerdir="))
                .partition("=")[2]
                .split(":")
            )
        return [
            (key, str(Path(folder).relative_to(self._root)))
            for key, folder in zip(chain, reversed(folders), strict=True)
        ]

    def add_layer(self, chain_id: str, parent: str | None, source: Path) -> None:
        """Makes an unpacked layer of hard links to the files in `source`, another containerd's folder of the same
        layer."""
        unfinished = f"unfinished-{chain_id}"
        self._remove_snapshot(unfinished)
        mount = json.loads(self._ctr("snapshots", "prepare", "--mounts", unfinished, *([parent] if parent else [])))[0]
        upper = next(
            (option.partition("=")[2] for option in mount["Options"] if option.startswith("upperdir=")), mount["Source"]
        )
        run(["cp", "-al", f"{source}/.", self._folder / Path(upper).relative_to(self._root)])
        self._ctr("snapshots", "commit", chain_id, unfinished)

    def snapshots(self) -> set[str]:
        """The keys of all snapshots; an unpacked layer's is its chain id."""
        return {line.split()[0] for line in self._ctr("snapshots", "list").splitlines()[1:]}

    def _remove_snapshot(self, key: str) -> None:
        if key in self.snapshots():
            self._ctr("snapshots", "remove", key)

    def _blob(self, digest: str) -> bytes:
        return (self._folder / BLOBS / digest.partition(":")[2]).read_bytes()

    def _ctr(self, *arguments: str) -> str:
        return run([program("ctr"), "--address", self._address, "--namespace", "k8s.io", *arguments])


def wait_for_containerd(group: str, log: Path, folder: Path, root: Path) -> Containerd:
    """Waits until the containerd in this cgroup answers. Other processes there see its socket too, but may end at any
    time."""

    def answering() -> Containerd | None:
        candidates = (
            Containerd(process, folder, root) for process in cgroups.processes(group) if _name(process) == NAME
        )
        return next((candidate for candidate in candidates if candidate.answers()), None)

    found = wait_for(answering, lambda: bool(cgroups.processes(group)), NAME, log)
    assert found is not None
    return found


def _name(process: int) -> str:
    """Of the program that it runs, at most 15 characters. Empty: it has ended."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""
