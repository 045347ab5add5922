"""Saves sharded checkpoints in a directory as described in `storage`, at once or while the training continues.

In the background, the ranks do not communicate: their process group is the training's. Each leaves what it has written
in a small file in the folder, for which rank 0 waits.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import pathlib
import pickle
import re
import secrets
import shutil
import threading
import time
from collections.abc import Collection, Sequence

from elasticjob_runtime.training import background, channel, checkpoint, progress
from elasticjob_runtime.training.checkpoint import CheckpointError, FencedError, claims, files, intact, manifest
from elasticjob_runtime.training.checkpoint.directory import PathLike, cannot_write
from elasticjob_runtime.training.sharded import plain, ranks
from elasticjob_runtime.training.sharded.contents import Contents
from elasticjob_runtime.training.sharded.writing import Writing, Written

logger = logging.getLogger("elasticjob_runtime.training")

_SHARDS = re.compile(r"step-\d{12,}-(\d+)\.shards-[0-9a-f]+")
_POLL = 0.2
"""s between two looks for what other ranks have written."""
LONGEST_WAIT = 3600.0
"""s for which rank 0 waits for the files of other ranks, after its own are written."""
WAIT_AT_END = 300.0
"""s, once the training has ended on rank 0: the others have written theirs soon, or are no longer there."""


def save(path: PathLike, contents: Contents, step: int, keep: int, *, block: bool = True) -> None:
    """Collective. When it returns, the checkpoint survives a power loss; unless `block`, it may be written later.

    Raises CheckpointError on all ranks, also if the previous save in the background has failed.
    """
    finish()
    folder = pathlib.Path(path)
    name = ranks.from_first(lambda: _begin(folder, step))
    writing = Writing(folder / name, contents, copy=not block)
    if block:
        written = ranks.from_all(writing.write)
        ranks.from_first(lambda: _commit(folder, name, step, keep, writing, written))
        progress.remember_checkpoint(step)
        return
    _process.saving = _Saving(folder, name, step, keep, writing)


def finish() -> None:
    """Waits for the save in the background, if there is one. Collective. Raises CheckpointError on all ranks if it has
    failed."""
    saving = _process.saving
    if saving is None:
        return
    try:
        saving.finish()
    except Exception:
        _process.saving = None
        raise
    _process.saving = None  # not if a signal handler ends the wait: it still writes from the copy


class _Process:
    saving: _Saving | None = None


_process = _Process()


class _Saving:
    """One checkpoint, written in the background."""

    def __init__(self, folder: pathlib.Path, name: str, step: int, keep: int, writing: Writing) -> None:
        self._folder, self._name, self._step, self._keep = folder, name, step, keep
        self._writing = writing
        self._rank = ranks.rank()
        self._abandoned = threading.Event()
        self._until = math.inf
        self._ends = False
        self._save = background.begin(step, self._lead if self._rank == 0 else self._follow)

    def finish(self) -> None:
        try:
            ranks.from_all(lambda: None if self._rank == 0 else self._save.result())
        except CheckpointError:
            self._abandoned.set()
            self._save.wait()
            raise
        ranks.from_first(self._save.result)
        progress.remember_checkpoint(self._step)

    # -- in a thread, without other ranks

    def _follow(self) -> None:
        written = self._writing.write()
        note = pickle.dumps((written.results, written.files))
        with files.replace_atomically(self._note_of(self._rank)) as file:
            file.write(note)

    def _lead(self) -> None:
        own = self._writing.write()
        self._until = time.monotonic() + LONGEST_WAIT
        others = [self._wait_for(rank) for rank in range(1, self._writing.world_size)]
        _commit(self._folder, self._name, self._step, self._keep, self._writing, [own, *others])
        progress.remember_checkpoint(self._step)

    def _wait_for(self, rank: int) -> Written:
        while not self._abandoned.is_set():
            with contextlib.suppress(FileNotFoundError):
                data = self._note_of(rank).read_bytes()
                self._note_of(rank).unlink()
                return Written(*plain.loads(data))
            if self._is_late():
                raise CheckpointError(f"rank {rank} has not written its files in time")
            self._abandoned.wait(_POLL)
        raise CheckpointError("another rank could not write its files")

    def _is_late(self) -> bool:
        if not self._ends and not threading.main_thread().is_alive():
            self._ends = True
            self._until = min(self._until, time.monotonic() + WAIT_AT_END)
        return time.monotonic() > self._until

    def _note_of(self, rank: int) -> pathlib.Path:
        return self._folder / self._name / f".written-{rank}"


def _begin(folder: pathlib.Path, step: int) -> str:
    """Claims the directory, and returns the name for a new folder of shards. Rank 0 only."""
    if step < 0:
        raise CheckpointError(f"The step of a checkpoint must be 0 or more, not {step}.")
    try:
        files.make_directory(folder)
        claim = claims.claim_directory(folder, checkpoint.this_writer())
        name = f"step-{step:012d}-{claim.number}.shards-{secrets.token_hex(4)}"
        files.make_directory(folder / name)
        _tidy(folder, name)  # before writing: a killed save may have left the disk full
    except claims.RejectedError as error:
        raise FencedError(f"Cannot save the checkpoint of step {step} in {folder}: {error}.") from error
    except OSError as error:
        raise cannot_write(folder / claims.Found(0, step).name, error) from error
    return name


def _commit(
    folder: pathlib.Path, name: str, step: int, keep: int, writing: Writing, written: Sequence[Written]
) -> None:
    """Rank 0 only."""
    found = writing.finish(written)
    for file, (size, _) in found.items():
        if problem := _not_here(folder / name / file, size):
            raise CheckpointError(
                f"Rank 0 cannot use {folder / name / file}: {problem}. A sharded checkpoint needs a directory that all "
                "ranks share."
            )
        intact.remember(folder / name / file)
    document = {
        "format": manifest.FORMAT,
        "step": step,
        "folder": name,
        "world_size": writing.world_size,
        "files": found,
    }
    checkpoint.save(folder, step, lambda file: file.write(json.dumps(document).encode()), keep=keep)
    channel.send_phase("checkpoint", step=step)
    _tidy(folder, name)


def _not_here(file: pathlib.Path, size: int) -> str:
    """Why rank 0 cannot use what another rank has written; empty: it can."""
    try:
        return manifest.size_problem(file, size)
    except OSError as error:
        return f"is missing here ({error.strerror})"


def _tidy(folder: pathlib.Path, current: str) -> None:
    """Removes shards without a manifest: of checkpoints that are no longer kept, and of saves that were cut off. Not if
    a manifest cannot be read, since it may need them. Errors are only logged."""
    try:
        listing = claims.list_directory(folder)
        manifests = [manifest.read(folder / found.name) for found in listing.checkpoints]
        if claims.list_directory(folder).checkpoints != listing.checkpoints:
            return  # a person has just chosen one, which renames its manifest: next time
        _remove_shards(folder, {current, *(known["folder"] for known in manifests if known)}, listing.claim.number)
    except OSError as error:
        logger.warning("Cannot remove old shards in %s: %s.", folder, error)


def _remove_shards(folder: pathlib.Path, used: Collection[str], claim: int) -> None:
    """Raises OSError."""
    for path in folder.iterdir():
        match = _SHARDS.fullmatch(path.name)
        if match is None or path.name in used:
            continue
        abandoned = time.time() - path.stat().st_mtime > files.ABANDONED_AFTER_SECONDS
        # Only one group has a claim, and it saves one checkpoint at a time. Without claims, only age is a proof.
        if int(match[1]) < claim or (int(match[1]) == claim and claim > 0) or abandoned:
            shutil.rmtree(path, ignore_errors=True)
