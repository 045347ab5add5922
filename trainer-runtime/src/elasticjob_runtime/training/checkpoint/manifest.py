"""The manifest of a sharded checkpoint, and whether the files that it names are intact. Standard library only.

{"format": "elasticjob-sharded-1", "step": 120, "folder": "step-000000000120-7.shards-1f3a9c02", "world_size": 2,
 "files": {"__0_0.distcp": [size, SHA-256], ...}}
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, BinaryIO

FORMAT = "elasticjob-sharded-1"
_CHUNK = 1 << 20


def is_manifest(file: BinaryIO) -> bool:
    """Whether this checkpoint is a manifest. Leaves the file at its beginning."""
    beginning = file.read(2)
    file.seek(0)
    return beginning == b'{"'


def parse(data: bytes) -> dict[str, Any] | None:
    """data: may end with the footer of the checkpoint's format. None: it is no manifest."""
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        found, _ = json.JSONDecoder().raw_decode(data.decode("utf-8", "replace"))
        if isinstance(found, dict) and found.get("format") == FORMAT:
            return found
    return None


def read(file: pathlib.Path) -> dict[str, Any] | None:
    """None: it is absent, or no manifest. Raises OSError if the storage does not return it."""
    try:
        with file.open("rb") as opened:
            return parse(opened.read()) if is_manifest(opened) else None
    except FileNotFoundError:
        if file.name in os.listdir(file.parent):
            raise
        return None


def files_of(folder: pathlib.Path, found: Mapping[str, Any]) -> list[tuple[pathlib.Path, tuple[int, str]]]:
    """The files that a manifest in `folder` names, each with its size and SHA-256."""
    return [(folder / found["folder"] / name, tuple(about)) for name, about in sorted(found["files"].items())]


def damage(file: pathlib.Path, size: int, digest: str, *, read: bool = True) -> str:
    """How the file differs from what was written; empty: not at all. Without `read`, only sizes are compared. Raises
    OSError."""
    shards = file.parent
    if shards.name not in os.listdir(shards.parent) or file.name not in os.listdir(shards):
        return "is missing"
    problem = size_problem(file, size)
    if problem or not read:
        return problem
    return "" if digest_of(file) == (size, digest) else "has another checksum than when it was written"


def size_problem(file: pathlib.Path, size: int) -> str:
    """Raises OSError."""
    found = file.stat().st_size
    return "" if found == size else f"has {found} bytes instead of {size}"


def digest_of(file: pathlib.Path) -> tuple[int, str]:
    """Raises OSError."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
        return opened.tell(), digest.hexdigest()
