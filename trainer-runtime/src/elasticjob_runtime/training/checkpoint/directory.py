"""A directory of checkpoints: save, load the newest whole one, keep the last few. The public functions of this package.

    step-000000000120.ckpt                                    a checkpoint (see `format`)
    step-000000000130-7.ckpt                              one that was committed under the seventh claim (see `claims`)
    .step-000000000130.ckpt.<kernel>.<pid>.<random>.tmp       one that is being written (see `files`)
    .claim-000000000007.json                                  the seventh group that saved here

Nothing but the folder itself says what there is: no index that could be wrong.
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

from elasticjob_runtime.training.checkpoint import claims, files
from elasticjob_runtime.training.checkpoint import format as file_format
from elasticjob_runtime.training.checkpoint.claims import Claim, Found
from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError

logger = logging.getLogger("elasticjob_runtime.training.checkpoint")

T = TypeVar("T")
PathLike = str | os.PathLike[str]

DEFAULT_KEEP = 3
"""Checkpoints kept in a directory. More than one, so that there is one to go back to when the newest turns out
corrupt."""

_SCANS = 3
"""How often `load` lists the directory while another process prunes what it found."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read, for a reason that a person has to mend. The message says which."""


class FencedError(CheckpointError):
    """A newer group saves in this directory: what this one would add must not count. The message says which; this group
    has to end."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint(Generic[T]):
    step: int
    path: pathlib.Path
    state: T
    """What the reader made of the file."""


def save(directory: PathLike, step: int, write: Callable[[BinaryIO], Any], *, keep: int = DEFAULT_KEEP) -> pathlib.Path:
    """Writes the checkpoint of `step` and returns its path. When this returns, the checkpoint survives a power loss.

    `write` gets a binary file (write only, no seek) and puts the state into it: `lambda file: pickle.dump(state,
    file)`. An exception in it passes through, and leaves everything as it was. A checkpoint of the same step is
    replaced. Of the checkpoints up to this step the newest `keep` stay. Those of later steps are left alone: this run
    did not write them, and replaces them when it gets there.

    A worker of an agent (ELASTICJOB_FENCE is set) claims the directory for its group with the first save. From then on
    no older group commits there, and nothing that one adds is ever loaded.

    Raises CheckpointError where the directory cannot be written, FencedError where a newer group saves there,
    ValueError for a negative step or a `keep` below 1.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"a step is 0 or more and keep is 1 or more: got step={step}, keep={keep}")
    folder = pathlib.Path(directory)
    target = folder / Found(0, step).name
    writer: file_format.PayloadWriter | None = None
    try:
        files.make_directory(folder)
        claim = claims.enter(folder, claims.writer_of(os.environ))
        target = folder / Found(claim.number, step).name
        with files.replace_atomically(target, before_commit=lambda: claims.check(folder, claim)) as file:
            writer = file_format.PayloadWriter(file)
            write(writer)  # type: ignore[arg-type]  # a binary file in all but typeshed's class tree
            writer.finish(step)
            now = os.fstat(file.fileno()).st_mtime
    except claims.RefusedError as error:
        raise FencedError(f"The checkpoint of step {step} is not saved in {folder}: {error}.") from error
    except OSError as error:
        raise _cannot_write(target, error) from error
    except Exception:
        if writer is not None and writer.error is not None:
            raise _cannot_write(target, writer.error) from writer.error
        raise
    _tidy(folder, Found(claim.number, step), claim, keep, now)
    return target


def load(directory: PathLike, read: Callable[[BinaryIO], T]) -> Checkpoint[T] | None:
    """The newest checkpoint that is whole, or None where there is none.

    `read` gets a binary file (read only, seekable) that holds what `write` wrote: `pickle.load`. It is called only on a
    file whose checksum is right, so an exception in it means that state and reader do not fit, and passes through:
    going back to an older checkpoint would not help. Corrupt and half-written checkpoints are skipped, each with one
    warning in the log.

    Every caller looks for itself. In a shared folder with a cache, two ranks may find different steps: let rank 0 load,
    and broadcast.

    Raises CheckpointError where the directory or a file in it may not be read, and where no checkpoint is left because
    of errors of the disk or the file server: they may pass, and starting from the beginning would be the wrong answer
    to them.
    """
    folder = pathlib.Path(directory)
    skipped: dict[Found, Exception] = {}
    for _ in range(_SCANS):
        gone = False
        for found in (one for one in _history(folder) if one not in skipped):
            path, step = folder / found.name, found.step
            try:
                file, footer = _open_whole(path, step)
            except _GoneError:
                gone = True
                continue
            except (CorruptCheckpointError, _FaultyStorageError) as error:
                logger.warning("Checkpoint %s is skipped for the one before: %s.", path, error)
                skipped[found] = error
                continue
            with file:
                return Checkpoint(step=step, path=path, state=read(file_format.open_payload(file, footer)))
        if not gone:
            break  # else another process pruned what was listed, and has written a newer one: look again
    _nothing_left(folder, skipped)
    return None


def steps(directory: PathLike) -> list[int]:
    """Steps of the checkpoints in a directory, whole or not, in ascending order. Raises CheckpointError where it may
    not be read."""
    return sorted({found.step for found in _history(pathlib.Path(directory))})


def _history(folder: pathlib.Path) -> list[Found]:
    """What counts, the newest first. Raises CheckpointError."""
    try:
        return claims.valid(claims.look(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"Cannot read the checkpoint directory {folder}: {error.strerror}.") from error


class _GoneError(Exception):
    """The file was there when the directory was listed, and is no more."""


class _FaultyStorageError(Exception):
    """The storage failed to deliver the file. The message says how, as the second half of a sentence."""


@contextlib.contextmanager
def _sorting_errors(path: pathlib.Path) -> Iterator[None]:
    """Turns an OSError on a checkpoint into what it means: pruned meanwhile, faulty storage, or a matter for a
    person."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            raise _GoneError from error
        if error.errno == errno.EIO:
            raise _FaultyStorageError(f"it cannot be read: {error.strerror}") from error
        raise CheckpointError(f"Cannot read the checkpoint {path}: {error.strerror}.") from error


def _open_whole(path: pathlib.Path, step: int) -> tuple[BinaryIO, file_format.Footer]:
    """Opens a checkpoint and checks all of it."""
    with _sorting_errors(path), contextlib.ExitStack() as on_error:
        file = on_error.enter_context(open(path, "rb"))
        footer = file_format.read_footer(file)
        if footer.step != step:
            raise CorruptCheckpointError(f"it says that it is of step {footer.step}")
        file_format.verify(file, footer)
        on_error.pop_all()
        return file, footer


def _nothing_left(folder: pathlib.Path, skipped: dict[Found, Exception]) -> None:
    faults = [error for error in skipped.values() if isinstance(error, _FaultyStorageError)]
    if faults:
        raise CheckpointError(f"No checkpoint in {folder} can be read; the newest: {faults[0]}.") from faults[0]
    if skipped:
        logger.error("No checkpoint in %s can be used: all %d are corrupt.", folder, len(skipped))


def _tidy(folder: pathlib.Path, written: Found, claim: Claim, keep: int, now: float) -> None:
    """Removes what is no longer needed. Errors are logged: the checkpoint itself is safe by now.

    `now`: time of the file system, s, which may not be ours.
    """
    try:
        for path in files.remove_abandoned(folder, now):
            logger.info("Removed %s, left behind by a writer that died.", path)
        listing = claims.look(folder)
        if listing.claim.number != claim.number:
            return  # the next group's matter
        history = claims.valid(listing)
        earlier = [folder / found.name for found in reversed(history) if found < written]
        whole = [path for path in earlier if not _is_gone(path)]  # else they would take the place of good ones
        for path in whole[: max(0, len(whole) + 1 - keep)]:
            path.unlink(missing_ok=True)
        for found in set(listing.checkpoints) - set(history):
            (folder / found.name).unlink(missing_ok=True)
            logger.warning("Removed %s, which a group added that had been replaced.", folder / found.name)
    except (OSError, CheckpointError, _FaultyStorageError) as error:
        logger.warning("Old checkpoints in %s could not be removed: %s.", folder, error)


def _is_gone(path: pathlib.Path) -> bool:
    """Cheap check of an old checkpoint; also true where another process removed it."""
    try:
        with _sorting_errors(path), open(path, "rb") as file:
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
    return CheckpointError(f"Cannot write the checkpoint {target}: {reason}. The checkpoints before it are untouched.")
