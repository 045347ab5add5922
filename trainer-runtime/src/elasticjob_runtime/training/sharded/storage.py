"""A directory of sharded checkpoints.

    step-000000000120-7.shards-1f3a9c02/      what DCP writes: a file of each rank, and .metadata
    step-000000000120-7.ckpt                  the manifest: names, sizes and SHA-256 of these files

The manifest is a checkpoint like any other (`elasticjob_runtime.training.checkpoint`): complete or not there, fenced,
and the newest few are kept. It is written last, when all files are on the disk. Without it, the files do not count.
Each folder can be read with plain DCP, too.
"""

from __future__ import annotations

import dataclasses
import pathlib
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from elasticjob_runtime.training import checkpoint
from elasticjob_runtime.training.checkpoint import CheckpointError, intact, manifest
from elasticjob_runtime.training.checkpoint.directory import PathLike
from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError
from elasticjob_runtime.training.checkpoint.order import Choice, Held
from elasticjob_runtime.training.checkpoint.reading import UnreadableError, first_line
from elasticjob_runtime.training.sharded import plain, ranks
from elasticjob_runtime.training.sharded.contents import Contents


def load(path: PathLike, found: Mapping[str, Any], contents: Contents) -> int:
    """Loads a checkpoint whose files are intact, and returns its step. Collective. Raises CheckpointError on all
    ranks."""
    source = pathlib.Path(path) / found["folder"]
    reader = plain.Reader(source)
    state: dict[str, Any] = {}

    def read() -> None:
        state.update(contents.collect_for(reader.read_metadata().state_dict_metadata))
        dcp.load(state, storage_reader=reader, planner=plain.Planner())

    run_dcp(read, f"The checkpoint {source} does not fit this state")
    run_dcp(lambda: contents.apply(state), f"The checkpoint {source} cannot be used")
    return int(found["step"])


def find(path: PathLike, memory: Sequence[Held]) -> Choice | dict[str, Any] | None:
    """The newest state: a snapshot in memory, or the manifest of a checkpoint whose files are all intact. Collective.

    Rank 0 reads manifests, newest first. For each, all ranks check files; None ends that.
    """
    if ranks.rank() == 0:
        return _lead(path, memory)
    while True:
        wanted: dict[str, Any] | None = ranks.from_first(lambda: None)
        if wanted is None:
            break
        ranks.gather(_problem(pathlib.Path(path), wanted))
    return _agree(None)


def _lead(path: PathLike, memory: Sequence[Held]) -> Choice | dict[str, Any] | None:
    found, failed = None, None
    try:
        found = checkpoint.load(
            path,
            lambda file: _check_together(_parse(file, path), path),
            memory=memory,
            read_memory=lambda choice: choice,
        )
    except CheckpointError as error:
        failed = error

    def end() -> None:
        if failed is not None:
            raise failed

    ranks.from_first(end)
    return _agree(found)


def _agree(found: checkpoint.Checkpoint[Choice | dict[str, Any]] | None) -> Choice | dict[str, Any] | None:
    """What rank 0 has found, on all ranks."""
    shared = ranks.from_first(lambda: found)
    if shared is None:
        return None
    checkpoint.continue_from(shared.about)
    return shared.state


def _check_together(wanted: dict[str, Any], path: PathLike) -> Choice | dict[str, Any]:
    """Rank 0's side. Raises UnreadableError, CorruptCheckpointError."""
    ranks.from_first(lambda: wanted)
    problems = ranks.gather(_problem(pathlib.Path(path), wanted))
    for rank, problem in enumerate(problems):
        if isinstance(problem, Unreadable):
            raise UnreadableError(problem.file, f"{problem.reason} (rank {rank})")
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise CorruptCheckpointError(f"rank {rank} found that {problem}" if len(problems) > 1 else str(problem))
    for file, _ in manifest.files_of(pathlib.Path(path), wanted):
        intact.remember(file)
    return wanted


def _parse(file: BinaryIO, path: PathLike) -> dict[str, Any]:
    """Raises CheckpointError if this is no manifest: the file is intact, so an older one would not help."""
    found = manifest.parse(file.read()) if manifest.is_manifest(file) else None
    if found is None:
        raise CheckpointError(
            f"The newest checkpoint in {path} is not sharded: load it with load_checkpoint, or use another directory."
        )
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that the storage does not return to a rank. See `elasticjob_runtime.training.checkpoint.reading`."""

    file: pathlib.Path
    reason: str


def _problem(folder: pathlib.Path, wanted: dict[str, Any]) -> Unreadable | str | None:
    """What is wrong with this rank's share of the files: the storage does not return one, or one is corrupt (in words).
    None: nothing."""
    for file, about in manifest.files_of(folder, wanted)[ranks.rank() :: ranks.size()]:
        try:
            if problem := manifest.damage(file, *about):
                return f"{file} {problem}"
        except OSError as error:
            return Unreadable(file, error.strerror or str(error))
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
