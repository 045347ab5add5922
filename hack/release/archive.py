"""Changes archives that other tools have written: the name of an image, and what makes two builds differ.

A docker-archive is a tar with a manifest, so renaming its image needs no image builder.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

from hack.cluster.oci import add_member


def retag(archive: Path, target: Path, name: str) -> None:
    """Copies the docker-archive `archive` to `target`, with `name` as the only name of its image.

    Everything but the manifest is copied byte for byte. Raises KeyError if there is no manifest.
    """
    with tarfile.open(archive) as source, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as copy:
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if content is not None and member.name == "manifest.json":
                (image,) = json.load(content)
                data = json.dumps([{**image, "RepoTags": [name]}]).encode()
                member.size = len(data)
                content = io.BytesIO(data)
            if member.name != "repositories":  # the names again, in an older format
                copy.addfile(member, content)


def make_reproducible(archive: Path, time: int) -> None:
    """Rewrites a .tar.gz with its members in order, all of `time` (Unix time, s) and of root: the same files give the
    same bytes."""
    with tarfile.open(archive) as source:
        members = [(member, source.extractfile(member)) for member in source if member.isfile()]
        content = [(member, file.read()) for member, file in members if file is not None]
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=time) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as copy,
    ):
        for member, data in sorted(content, key=lambda one: one[0].name):
            add_member(copy, member.name, data, mode=0o755 if member.mode & 0o100 else 0o644, time=time)
