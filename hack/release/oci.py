"""One image for several architectures: an OCI layout whose index names an image for each.

Made from docker-archives, which any image builder writes. https://github.com/opencontainers/image-spec
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MEDIA_TYPE = "application/vnd.oci.image"
LAYER = f"{_MEDIA_TYPE}.layer.v1.tar+gzip"
CONFIG, MANIFEST, INDEX = (f"{_MEDIA_TYPE}.{each}.v1+json" for each in ("config", "manifest", "index"))

Descriptor = dict[str, Any]


class Layout:
    """An OCI layout, as files by path."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"})}

    def add(self, media_type: str, content: bytes) -> Descriptor:
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def add_image(self, archive: Path, architecture: str) -> Descriptor:
        """The image of a docker-archive, whose files are for `architecture` whatever its builder says: it may have run
        on another one. Raises KeyError if the archive has no manifest."""
        config, layers = _read(archive)
        described = {**config, "architecture": architecture}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add(CONFIG, _json(described)),
            "layers": [self.add(LAYER, gzip.compress(layer, mtime=0)) for layer in layers],
        }
        platform = {"architecture": architecture, "os": config.get("os", "linux")}
        return {**self.add(MANIFEST, _json(manifest)), "platform": platform}

    def write(self, target: Path, time: int) -> None:
        """As a tar, with all files of `time` (Unix time, s): the same files give the same bytes."""
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, content in sorted(self.files.items()):
                info = tarfile.TarInfo(name)
                info.size, info.mtime, info.mode = len(content), time, 0o644
                tar.addfile(info, io.BytesIO(content))


def write_index(archives: Mapping[str, Path], target: Path, name: str, time: int) -> str:
    """Writes one image for several architectures (architecture -> docker-archive) under `name`, and returns the digest
    by which a registry will know it.

    Raises KeyError if an archive has no manifest.
    """
    layout = Layout()
    manifests = [layout.add_image(archive, architecture) for architecture, archive in sorted(archives.items())]
    index = layout.add(INDEX, _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))
    # containerd reads the first name, other tools the second.
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    layout.files["index.json"] = _json(
        {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**index, "annotations": names}]}
    )
    layout.write(target, time)
    return str(index["digest"])


def _read(archive: Path) -> tuple[dict[str, Any], list[bytes]]:
    """(configuration, layers) of a docker-archive."""
    with tarfile.open(archive) as tar:

        def content(name: str) -> bytes:
            file = tar.extractfile(name)
            if file is None:
                raise KeyError(name)
            return file.read()

        (image,) = json.loads(content("manifest.json"))
        return json.loads(content(image["Config"])), [content(layer) for layer in image["Layers"]]


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
