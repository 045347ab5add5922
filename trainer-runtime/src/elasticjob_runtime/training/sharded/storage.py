"""A directory of sharded checkpoints.

    step-000000000120-7.shards-1f3a9c02/      what DCP writes: a file of each rank, and .metadata
    step-000000000120-7.ckpt                  the manifest: names, sizes and SHA-256 of these files

The manifest is a checkpoint like any other (`elasticjob_runtime.training.checkpoint`): complete or not there, fenced,
and the newest few are kept. It is written last, when all files are on the disk. Without it, the files do not count.
Each folder can be read with plain DCP, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import pickle
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from elasticjob_runtime.training import checkpoint
from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.checkpoint.directory import PathLike
from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError
from elasticjob_runtime.training.checkpoint.reading import UnreadableError
from elasticjob_runtime.training.sharded import plain, ranks
from elasticjob_runtime.training.sharded.contents import Contents
from elasticjob_runtime.training.sharded.writing import digest_of, first_line

FORMAT = "elasticjob-sharded-1"


def load(path: PathLike, contents: Contents) -> int | None:
    """Loads the newest checkpoint whose files are all intact; returns its step, or None if there is none. Collective.

    Raises CheckpointError on all ranks.
    """
    manifest = _choose(path)
    if manifest is None:
        return None
    state = contents.collect()
    source = pathlib.Path(path) / manifest["folder"]
    run_dcp(
        lambda: dcp.load(state, storage_reader=plain.Reader(source), planner=plain.Planner()),
        f"The checkpoint {source} does not fit this state",
    )
    run_dcp(lambda: contents.apply(state), f"The checkpoint {source} cannot be used")
    return int(manifest["step"])


def is_manifest(file: BinaryIO) -> bool:
    """Whether this checkpoint is a manifest. Leaves the file at its beginning."""
    beginning = file.read(2)
    file.seek(0)
    return beginning == b'{"'


def _choose(path: PathLike) -> dict[str, Any] | None:
    """The manifest of the newest checkpoint whose files are all intact. Collective.

    Rank 0 reads manifests, newest first. For each, all ranks check files; None ends that.
    """
    if ranks.rank() == 0:
        return _lead(path)
    while True:
        wanted: dict[str, Any] | None = ranks.from_first(lambda: None)
        if wanted is None:
            return ranks.from_first(lambda: None)
        ranks.gather(_problem(pathlib.Path(path), wanted))


def _lead(path: PathLike) -> dict[str, Any] | None:
    manifest, failed = None, None
    try:
        found = checkpoint.load(path, lambda file: _check_together(_parse(file, path), path))
        manifest = found.state if found is not None else None
    except CheckpointError as error:
        failed = error

    def end() -> None:
        if failed is not None:
            raise failed

    ranks.from_first(end)
    return ranks.from_first(lambda: manifest)


def _check_together(manifest: dict[str, Any], path: PathLike) -> dict[str, Any]:
    """Rank 0's side. Raises UnreadableError, CorruptCheckpointError."""
    ranks.from_first(lambda: manifest)
    problems = ranks.gather(_problem(pathlib.Path(path), manifest))
    for rank, problem in enumerate(problems):
        if isinstance(problem, Unreadable):
            raise UnreadableError(problem.file, f"{problem.reason} (rank {rank})")
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise CorruptCheckpointError(f"rank {rank} found that {problem}" if len(problems) > 1 else str(problem))
    return manifest


def _parse(file: BinaryIO, path: PathLike) -> dict[str, Any]:
    """Raises CheckpointError if this is no manifest: the file is intact, so an older one would not help."""
    manifest = _manifest(file.read()) if is_manifest(file) else None
    if manifest is None:
        raise CheckpointError(
            f"The newest checkpoint in {path} is not sharded: load it with load_checkpoint, or use another directory."
        )
    return manifest


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that the storage does not return to a rank. See `elasticjob_runtime.training.checkpoint.reading`."""

    file: pathlib.Path
    reason: str


def _problem(folder: pathlib.Path, manifest: dict[str, Any]) -> Unreadable | str | None:
    """What is wrong with this rank's share of the files: the storage does not return one, or one is corrupt (in words).
    None: nothing."""
    for name in sorted(manifest["files"])[ranks.rank() :: ranks.size()]:
        file = folder / manifest["folder"] / name
        try:
            if problem := _damage(file, *manifest["files"][name]):
                return f"{file} {problem}"
        except OSError as error:
            return Unreadable(file, error.strerror or str(error))
    return None


def _damage(file: pathlib.Path, size: int, digest: str) -> str:
    """How the file differs from what was written; empty: not at all. Raises OSError."""
    if file.name not in os.listdir(file.parent):
        return "is missing"
    if problem := size_problem(file, size):
        return problem
    return "" if digest_of(file) == (size, digest) else "has another checksum than when it was written"


def size_problem(file: pathlib.Path, size: int) -> str:
    """Raises OSError."""
    found = file.stat().st_size
    return "" if found == size else f"has {found} bytes instead of {size}"


def read_manifest(file: pathlib.Path) -> dict[str, Any] | None:
    """None: it is absent, or no manifest. Raises OSError if the storage does not return it."""
    try:
        return _manifest(file.read_bytes())
    except FileNotFoundError:
        if file.name in os.listdir(file.parent):
            raise
        return None


def _manifest(data: bytes) -> dict[str, Any] | None:
    """data: may end with the footer of the checkpoint's format."""
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        found, _ = json.JSONDecoder().raw_decode(data.decode("utf-8", "replace"))
        if isinstance(found, dict) and found.get("format") == FORMAT:
            return found
    return None


def run_dcp(call: Callable[[], Any], what: str) -> None:
    """Raises CheckpointError, with the first rank's reason. DCP's exception has the tracebacks of all ranks."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single process, as intended
            call()
    except CheckpointException as error:
        rank, (reason, _) = min(error.failures.items())
        raise CheckpointError(f"{what}: {first_line(reason)} (rank {rank}).") from error
    except (OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{what}: {first_line(error)}.") from error
