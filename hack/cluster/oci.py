"""Image archives, written (OCI) and read (OCI and Docker) in plain Python: a static binary needs no image builder.

Format: https://github.com/opencontainers/image-spec (image-layout.md, config.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .output import ClusterError

CONTAINERD_NAME = "io.containerd.image.name"
REFERENCE_NAME = "org.opencontainers.image.ref.name"
_MEDIA_TYPE = "application/vnd.oci.image"
LAYER = f"{_MEDIA_TYPE}.layer.v1.tar"
CONFIG, MANIFEST, INDEX = (f"{_MEDIA_TYPE}.{item}.v1+json" for item in ("config", "manifest", "index"))

Descriptor = dict[str, Any]


class Layout:
    """An OCI layout, as files by path."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self.add_file("oci-layout", {"imageLayoutVersion": "1.0.0"})

    def add_file(self, path: str, content: object) -> None:
        self._files[path] = _json(content)

    def add(self, media_type: str, content: object) -> Descriptor:
        """`content`: bytes, or what becomes JSON."""
        data = content if isinstance(content, bytes) else _json(content)
        digest = _digest(data)
        self._files[f"blobs/sha256/{digest.partition(':')[2]}"] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def write(self, archive: Path, image: Descriptor, name: str, time: int = 0) -> None:
        """As a tar, in which `image` has a name, and all files are of `time` (Unix time, s): the same files give the
        same bytes."""
        # containerd reads the first name, other tools the second.
        entry = {**image, "annotations": {CONTAINERD_NAME: name, REFERENCE_NAME: name.rpartition(":")[2]}}
        self.add_file("index.json", {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
        aside = archive.with_suffix(".part")
        with tarfile.open(aside, "w", format=tarfile.PAX_FORMAT) as tar:
            for path, content in sorted(self._files.items()):
                add_member(tar, path, content, time=time)
        aside.rename(archive)


def add_member(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644, time: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), time, mode
    tar.addfile(entry, io.BytesIO(content))


@dataclass(frozen=True)
class ArchivedImage:
    """What an archive holds: the image's full name, such as `localhost/trainer:dev`, and a digest of all that is in it
    (`sha256:...`): the manifest's of an OCI archive, the config's of a Docker archive."""

    name: str
    digest: str


@dataclass(frozen=True)
class StoredImage:
    """An image as containerd stores it: the bytes of its manifest and of its config, without the layers."""

    name: str
    manifest_type: str
    manifest: bytes
    config: bytes


def chain_ids(config: bytes) -> list[str]:
    """The names of an image's unpacked layers, lowest first: each stands for the layer and all below it ("ChainID" in
    config.md)."""
    chain: list[str] = []
    for diff_id in json.loads(config)["rootfs"]["diff_ids"]:
        chain.append(_digest(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return chain


def write_stored_image(archive: Path, image: StoredImage) -> None:
    """Writes an archive of an image whose layers the reader has already."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    layout = Layout()
    layout.add(CONFIG, image.config)
    layout.write(archive, layout.add(image.manifest_type, image.manifest), image.name)


def write_archive(
    archive: Path, name: str, files: Mapping[str, Path], entrypoint: Sequence[str], user: str = "65532:65532"
) -> None:
    """Writes an image with one layer that holds `files` (path in the image -> file here), all executable.

    The same input gives the same bytes.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, source in sorted(files.items()):
            add_member(tar, path.lstrip("/"), source.read_bytes(), mode=0o755)
    layout = Layout()
    described = layout.add(LAYER, layer.getvalue())
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "Entrypoint": list(entrypoint),
            "User": user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [described["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.add(CONFIG, config),
        "layers": [described],
    }
    layout.write(archive, layout.add(MANIFEST, manifest), name)


def read_archive(archive: Path) -> ArchivedImage:
    """Name and digest of the one image in an archive. Raises ClusterError if it is not an image archive or does not
    contain the full name."""
    try:
        with tarfile.open(archive) as tar:
            found = _read_docker(tar) or _read_oci(tar)
    except (OSError, tarfile.TarError) as error:
        raise ClusterError(f"{archive} cannot be read: {error}") from error
    if len(found) != 1:
        raise ClusterError(
            f"{archive} holds {len(found)} named images; load_image takes an OCI or Docker archive of one"
        )
    if "/" not in found[0].name or ":" not in found[0].name.rpartition("/")[2]:
        raise ClusterError(
            f"{archive} names its image {found[0].name!r}; the full name, such as localhost/trainer:dev, is needed"
        )
    return found[0]


def _read_oci(tar: tarfile.TarFile) -> list[ArchivedImage]:
    manifests = (_member(tar, "index.json") or {}).get("manifests", [])
    annotations = [manifest.get("annotations", {}) for manifest in manifests]
    names = [annotation.get(CONTAINERD_NAME) or annotation.get(REFERENCE_NAME, "") for annotation in annotations]
    return [ArchivedImage(name, manifest["digest"]) for name, manifest in zip(names, manifests, strict=True)]


def _read_docker(tar: tarfile.TarFile) -> list[ArchivedImage]:
    images = _member(tar, "manifest.json") or []
    digests = ["sha256:" + Path(image["Config"]).name.removesuffix(".json") for image in images]
    return [
        ArchivedImage(name, digest)
        for image, digest in zip(images, digests, strict=True)
        for name in image["RepoTags"] or []
    ]


def _member(tar: tarfile.TarFile, name: str) -> Any:
    for member in (name, f"./{name}"):
        try:
            content = tar.extractfile(member)
        except KeyError:
            continue
        return json.load(content) if content else None
    return None


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
