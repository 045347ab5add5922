"""A docker-archive, as image builders write it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from hack.cluster.oci import add_member


def docker_archive(path: Path, layer: bytes) -> Path:
    config = {"architecture": "amd64", "os": "linux", "config": {"User": "65532"}, "rootfs": {"diff_ids": []}}
    manifest = [{"Config": "c.json", "RepoTags": ["localhost/x:dev"], "Layers": ["l.tar"]}]
    with tarfile.open(path, "w") as tar:
        add_member(tar, "l.tar", layer)
        for name, content in (("c.json", config), ("manifest.json", manifest), ("repositories", {})):
            add_member(tar, name, json.dumps(content).encode())
    return path
