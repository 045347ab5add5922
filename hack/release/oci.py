"""One image for several architectures: an OCI layout whose index names an image for each.

Made from docker-archives, which any image builder writes. https://github.com/opencontainers/image-spec
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hack.cluster.oci import CONFIG, INDEX, LAYER, MANIFEST, Descriptor, Layout


def write_index(archives: Mapping[str, Path], target: Path, name: str, time: int) -> str:
    """Writes one image for several architectures (architecture -> docker-archive) under `name`, and returns the digest
    by which a registry will know it.

    Raises KeyError if an archive has no manifest.
    """
    layout = Layout()
    manifests = [_add_image(layout, archive, architecture) for architecture, archive in sorted(archives.items())]
    index = layout.add(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    layout.write(target, index, name, time)
    return str(index["digest"])


def _add_image(layout: Layout, archive: Path, architecture: str) -> Descriptor:
    """The image of a docker-archive, whose files are for `architecture` whatever its builder says: it may have run on
    another one."""
    config, layers = _read(archive)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.add(CONFIG, {**config, "architecture": architecture}),
        "layers": [layout.add(f"{LAYER}+gzip", gzip.compress(layer, mtime=0)) for layer in layers],
    }
    platform = {"architecture": architecture, "os": config.get("os", "linux")}
    return {**layout.add(MANIFEST, manifest), "platform": platform}


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
