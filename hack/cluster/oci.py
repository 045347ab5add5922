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
    _write_layout(archive, image.name, image.manifest_type, image.manifest, [image.config])


def write_archive(
    archive: Path, name: str, files: Mapping[str, Path], entrypoint: Sequence[str], user: str = "65532:65532"
) -> None:
    """Writes an image with one layer that holds `files` (path in the image -> file here), all executable.

    The same input gives the same bytes.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, source in sorted(files.items()):
            _add(tar, path.lstrip("/"), source.read_bytes(), mode=0o755)
    layer_digest = _digest(layer.getvalue())
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "Entrypoint": list(entrypoint),
            "User": user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _descriptor("application/vnd.oci.image.config.v1+json", _json(config)),
        "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer.getvalue())],
    }
    _write_layout(archive, name, str(manifest["mediaType"]), _json(manifest), [_json(config), layer.getvalue()])


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


def _write_layout(archive: Path, name: str, manifest_type: str, manifest: bytes, blobs: Sequence[bytes]) -> None:
    entry = _descriptor(manifest_type, manifest)
    entry["annotations"] = {CONTAINERD_NAME: name, REFERENCE_NAME: name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    aside = archive.with_suffix(".part")
    with tarfile.open(aside, mode="w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json(index))
        for blob in (manifest, *blobs):
            _add(tar, f"blobs/sha256/{_digest(blob).partition(':')[2]}", blob)
    aside.rename(archive)


def _read_oci(tar: tarfile.TarFile) -> list[ArchivedImage]:
    manifests = (_member(tar, "index.json") or {}).get("manifests", [])
    annotations = [manifest.get("annotations", {}) for manifest in manifests]
    names = [each.get(CONTAINERD_NAME) or each.get(REFERENCE_NAME, "") for each in annotations]
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


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
