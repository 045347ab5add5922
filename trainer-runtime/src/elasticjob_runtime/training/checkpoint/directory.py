"""Saves and loads checkpoints in a directory: the public functions of this package.

    step-000000000120.ckpt                                    a checkpoint (see `format`)
    step-000000000130-7.ckpt                                  one that was saved under the seventh claim (see `claims`)
    .step-000000000130.ckpt.<kernel>.<pid>.<random>.tmp       one that is being written (see `files`)
    .claim-000000000007.json                                  the seventh group that saved here

There is no index that could be wrong, only the directory itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Generic, TypeVar

from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.checkpoint import claims, files
from elasticjob_runtime.training.checkpoint import format as file_format
from elasticjob_runtime.training.checkpoint.claims import Claim, Found
from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError

logger = logging.getLogger("elasticjob_runtime.training.checkpoint")

T = TypeVar("T")
PathLike = str | os.PathLike[str]

DEFAULT_KEEP = 3
"""Checkpoints kept in a directory. More than one, in case the newest turns out to be corrupt."""

_SCANS = 3
"""How often `load` lists the directory if another process removes what it found."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read, for a reason that a person has to fix. The message says which."""


class FencedError(CheckpointError):
    """A newer worker group saves in this directory, so this one may not, and has to end. The message says which."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint(Generic[T]):
    step: int
    path: pathlib.Path
    state: T
    """What `read` returned."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A checkpoint's state that is elsewhere, too (in memory)."""

    fence: Fence
    """Of the worker group that saved it."""
    saved_at: float
    """Unix time, s."""


def save(directory: PathLike, step: int, write: Callable[[BinaryIO], Any], *, keep: int = DEFAULT_KEEP) -> pathlib.Path:
    """Writes the checkpoint of `step` and returns its path. When this returns, the checkpoint survives a power loss.

    `write` writes the state to a binary file that cannot seek: `lambda file: pickle.dump(state, file)`. An exception in
    it is passed on, and changes nothing in the directory. A checkpoint of the same step is replaced. Of the checkpoints
    up to this step, the newest `keep` are kept. Those of later steps are left alone: this run did not write them, and
    replaces them when it gets there.

    A worker that was started by an agent (ELASTICJOB_FENCE is set) claims the directory for its group with the first
    save. From then on, older groups cannot save there, and what they add anyway is never loaded.

    Raises CheckpointError if the directory cannot be written, FencedError if a newer group saves there, and ValueError
    for a negative step or a `keep` below 1.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"step must be 0 or more, and keep 1 or more: got step={step}, keep={keep}")
    folder = pathlib.Path(directory)
    target = folder / Found(0, step).name
    writer: file_format.PayloadWriter | None = None
    try:
        files.make_directory(folder)
        claim = claims.claim_directory(folder, claims.writer_of(os.environ))
        target = folder / Found(claim.number, step).name
        with files.replace_atomically(target, before_commit=lambda: claims.check(folder, claim)) as file:
            writer = file_format.PayloadWriter(file)
            write(writer)  # type: ignore[arg-type]  # a binary file in all but typeshed's class tree
            writer.finish(step)
            now = os.fstat(file.fileno()).st_mtime
    except claims.RejectedError as error:
        raise FencedError(f"Cannot save the checkpoint of step {step} in {folder}: {error}.") from error
    except OSError as error:
        raise _cannot_write(target, error) from error
    except Exception:
        if writer is not None and writer.error is not None:
            raise _cannot_write(target, writer.error) from writer.error
        raise
    _tidy(folder, Found(claim.number, step), claim, keep, now)
    return target


def load(directory: PathLike, read: Callable[[BinaryIO], T]) -> Checkpoint[T] | None:
    """Loads the newest intact checkpoint; returns None if there is none.

    `read` reads what `write` wrote from a seekable binary file: `pickle.load`. It is called only if the checksum is
    right, so an exception in it means that it does not fit the state; it is passed on, because an older checkpoint
    would not help. But a CorruptCheckpointError says that something that belongs to it is damaged. Corrupt and
    incomplete checkpoints are skipped, each with one warning in the log.

    With the cache of a shared file system, two ranks may find different steps: load on rank 0, and broadcast.

    Raises CheckpointError if the directory or a file in it cannot be read, or if no checkpoint is left because of
    errors of the disk or the file server: they may be temporary, and starting from scratch would be wrong.
    """
    folder = pathlib.Path(directory)
    skipped: dict[Found, Exception] = {}
    for _ in range(_SCANS):
        gone = False
        for found in (one for one in _history(folder) if one not in skipped):
            path, step = folder / found.name, found.step
            try:
                file, footer = _open_intact(path, step)
                with file:
                    return Checkpoint(step=step, path=path, state=read(file_format.open_payload(file, footer)))
            except _GoneError:
                gone = True
                continue
            except (CorruptCheckpointError, _FaultyStorageError) as error:
                logger.warning("Skipping checkpoint %s for the previous one: %s.", path, error)
                skipped[found] = error
        if not gone:
            break  # otherwise, another process removed it after writing a newer one
    _report_skipped(folder, skipped)
    return None


def newest_step(directory: PathLike, copy: Copy) -> int | None:
    """The step that `load` would begin with, if `copy` still counts; -1: there is none. None: the directory has been
    claimed since, and `copy` does not count. Opens no checkpoint. Raises CheckpointError."""
    try:
        listing = claims.list_directory(pathlib.Path(directory))
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise CheckpointError(f"Cannot read the checkpoint directory {directory}: {error.strerror}.") from error
    owner = claims.writer_of(os.environ).owner
    if claims.supersedes(listing.claim, claims.Writer(owner=owner, fence=copy.fence), copy.saved_at):
        return None
    return next((found.step for found in claims.valid(listing)), -1)


def newest_claim(directory: PathLike) -> Claim:
    """Of the group that saved in the directory last; number 0: there is none. Raises CheckpointError."""
    try:
        return claims.list_directory(pathlib.Path(directory)).claim
    except FileNotFoundError:
        return claims.UNCLAIMED
    except OSError as error:
        raise CheckpointError(f"Cannot read the checkpoint directory {directory}: {error.strerror}.") from error


def steps(directory: PathLike) -> list[int]:
    """Steps of the checkpoints in a directory, intact or not, in ascending order. Raises CheckpointError if the
    directory cannot be read."""
    return sorted({found.step for found in _history(pathlib.Path(directory))})


def _history(folder: pathlib.Path) -> list[Found]:
    """The checkpoints that count, newest first. Raises CheckpointError."""
    try:
        return claims.valid(claims.list_directory(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"Cannot read the checkpoint directory {folder}: {error.strerror}.") from error


class _GoneError(Exception):
    """The file was removed after the directory was listed."""


class _FaultyStorageError(Exception):
    """The storage failed to return the file. The message, the second half of a sentence, says how."""


@contextlib.contextmanager
def _classified_errors(path: pathlib.Path) -> Iterator[None]:
    """Classifies an OSError on a checkpoint: the file was removed, the storage is faulty, or a person has to act."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            raise _GoneError from error
        if error.errno == errno.EIO:
            raise _FaultyStorageError(f"it cannot be read: {error.strerror}") from error
        raise CheckpointError(f"Cannot read the checkpoint {path}: {error.strerror}.") from error


def _open_intact(path: pathlib.Path, step: int) -> tuple[BinaryIO, file_format.Footer]:
    """Opens a checkpoint and verifies it completely."""
    with _classified_errors(path), contextlib.ExitStack() as on_error:
        file = on_error.enter_context(open(path, "rb"))
        footer = file_format.read_footer(file)
        if footer.step != step:
            raise CorruptCheckpointError(f"it says that it is of step {footer.step}")
        file_format.verify(file, footer)
        on_error.pop_all()
        return file, footer


def _report_skipped(folder: pathlib.Path, skipped: dict[Found, Exception]) -> None:
    faults = [error for error in skipped.values() if isinstance(error, _FaultyStorageError)]
    if faults:
        raise CheckpointError(f"No checkpoint in {folder} can be read; the newest: {faults[0]}.") from faults[0]
    if skipped:
        logger.error("No checkpoint in %s is usable: all %d are corrupt.", folder, len(skipped))


def _tidy(folder: pathlib.Path, written: Found, claim: Claim, keep: int, now: float) -> None:
    """Removes what is no longer needed. Errors are only logged, because the checkpoint itself is safe.

    `now`: the file system's time, s, which may differ from this machine's.
    """
    try:
        for path in files.remove_abandoned(folder, now):
            logger.info("Removed %s, abandoned by a writer that died.", path)
        listing = claims.list_directory(folder)
        if listing.claim.number != claim.number:
            return  # the newer group tidies
        history = claims.valid(listing)
        earlier = [folder / found.name for found in reversed(history) if found < written]
        intact = [path for path in earlier if not _is_gone(path)]  # corrupt ones must not displace intact ones
        for path in intact[: max(0, len(intact) + 1 - keep)]:
            path.unlink(missing_ok=True)
        for found in set(listing.checkpoints) - set(history):
            (folder / found.name).unlink(missing_ok=True)
            logger.warning("Removed %s, which a group added after it was replaced.", folder / found.name)
    except (OSError, CheckpointError, _FaultyStorageError) as error:
        logger.warning("Cannot remove old checkpoints in %s: %s.", folder, error)


def _is_gone(path: pathlib.Path) -> bool:
    """Checks only the footer, and removes a corrupt checkpoint. Also true if another process removed it."""
    try:
        with _classified_errors(path), open(path, "rb") as file:
            file_format.read_footer(file)
    except CorruptCheckpointError as error:
        path.unlink(missing_ok=True)
        logger.warning("Removed the corrupt checkpoint %s: %s.", path, error)
        return True
    except _GoneError:
        return True
    return False


def _cannot_write(target: pathlib.Path, error: OSError) -> CheckpointError:
    reason = error.strerror or error
    return CheckpointError(f"Cannot write the checkpoint {target}: {reason}. Earlier checkpoints are untouched.")
