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
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Generic, TypeVar

from elasticjob_runtime.training.checkpoint import claims, files, intact, reading
from elasticjob_runtime.training.checkpoint import format as file_format
from elasticjob_runtime.training.checkpoint.claims import Claim, Found, Listing, Writer
from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError
from elasticjob_runtime.training.checkpoint.order import Choice, Held, Kind, State, choose
from elasticjob_runtime.training.checkpoint.reading import CheckpointError, UnreadableError, first_line

logger = logging.getLogger("elasticjob_runtime.training.checkpoint")

T = TypeVar("T")
PathLike = str | os.PathLike[str]

DEFAULT_KEEP = 3
"""Checkpoints kept in a directory. More than one, in case the newest turns out to be corrupt."""


class FencedError(CheckpointError):
    """A newer worker group saves in this directory, so this one may not, and has to end. The message says which."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint(Generic[T]):
    step: int
    path: pathlib.Path
    state: T
    """What `read` returned."""
    about: State


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
        claim = claims.claim_directory(folder, this_writer())
        target = folder / Found(claim.number, step).name
        _remove_abandoned(folder)  # before writing: a killed save may have left the disk full

        def before_commit() -> pathlib.Path:
            nonlocal claim, target
            claim = claims.check(folder, claim)
            target = folder / Found(claim.number, step).name
            return target

        with files.replace_atomically(target, before_commit) as file:
            writer = file_format.PayloadWriter(file)
            write(writer)  # type: ignore[arg-type]  # a binary file in all but typeshed's class tree
            writer.finish(step)
            file.flush()
            intact.remember(file)
    except claims.RejectedError as error:
        raise FencedError(f"Cannot save the checkpoint of step {step} in {folder}: {error}.") from error
    except OSError as error:
        raise cannot_write(target, error) from error
    except Exception:
        if writer is not None and writer.error is not None:
            raise cannot_write(target, writer.error) from writer.error
        raise
    _tidy(folder, Found(claim.number, step), claim, keep)
    return target


def load(
    directory: PathLike,
    read: Callable[[BinaryIO], T],
    *,
    memory: Sequence[Held] = (),
    read_memory: Callable[[Choice], T] | None = None,
) -> Checkpoint[T] | None:
    """Loads the newest intact checkpoint; returns None if there is none.

    `read` reads what `write` wrote from a seekable binary file: `pickle.load`. It is called only if the checksum is
    right, so an exception in it means that it does not fit the state; it is passed on, because an older checkpoint
    would not help. But a CorruptCheckpointError says that something that belongs to it is damaged. Corrupt and
    incomplete checkpoints are skipped, each with one warning in the log.

    memory: what is there besides the directory, which `read_memory` reads, or raises CorruptCheckpointError.

    With the cache of a shared file system, two ranks may find different steps: load on rank 0, and broadcast.

    Raises CheckpointError if the directory or a file in it cannot be read: it may be temporary, and starting from an
    older checkpoint or from scratch would be wrong. See `reading`.
    """
    folder = pathlib.Path(directory)
    corrupt = 0

    def read_one(choice: Choice) -> Checkpoint[T]:
        about = choice.state
        path = folder / Found(about.claim, about.step).name
        logger.info("%s", choice.why)
        if about.kind is not Kind.STORAGE:
            assert read_memory is not None
            return Checkpoint(step=about.step, path=path, state=read_memory(choice), about=about)
        with _storage_errors(path), intact.opened(path, about.step) as (file, footer):
            found = read(file_format.open_payload(file, footer))
            return Checkpoint(step=about.step, path=path, state=found, about=about)

    def skip(about: State, error: CorruptCheckpointError) -> None:
        nonlocal corrupt
        corrupt += about.kind is Kind.STORAGE
        name = folder / Found(about.claim, about.step).name
        what = name if about.kind is Kind.STORAGE else f"of step {about.step} in memory"
        logger.warning("Skipping checkpoint %s for the previous one: %s.", what, error)

    _warn_of_ignored(folder)
    result = reading.newest(lambda: [*_held(folder), *memory], this_job(), read_one, skip)
    if result is None and corrupt:
        logger.error("No checkpoint in %s is usable: all %d are corrupt.", folder, corrupt)
    if result is not None:
        continue_from(result.about)
    return result


def newest_state(directory: PathLike) -> State:
    """Of the files in the directory. Opens no checkpoint. Raises CheckpointError."""
    return choose(_held(pathlib.Path(directory)), this_job(), shared=True).state


def this_job() -> str:
    """`State.job` of what this process saves."""
    return this_writer().owner


def this_writer() -> Writer:
    return claims.writer_of(os.environ, _process.choice)


def continue_from(state: State, *, only: bool = False) -> None:
    """What this process saves comes from this state, and so from what a person has chosen before it. `only`: and from
    nothing that it has loaded before."""
    _process.choice = state.choice if only else max(_process.choice, state.choice)


class _Process:
    choice = 0
    """See `order.State`."""


_process = _Process()


def steps(directory: PathLike) -> list[int]:
    """Steps of the checkpoints in a directory, intact or not, in ascending order. Raises CheckpointError if the
    directory cannot be read."""
    return sorted({found.step for found in claims.valid(_list(pathlib.Path(directory)))})


def _held(folder: pathlib.Path) -> list[Held]:
    """The checkpoints that count. Raises CheckpointError."""
    listing = _list(folder)
    return [Held(rank=0, state=claims.state_of(listing, found)) for found in claims.valid(listing)]


def _list(folder: pathlib.Path) -> Listing:
    """Raises CheckpointError. See `reading`: a directory is absent only if its parent does not list it."""
    for attempt in range(1, reading.TRIES + 1):
        try:
            return claims.list_directory(folder)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not _is_listed(folder.resolve()):
                return Listing(claims.UNCLAIMED, (), ())
            if isinstance(error, NotADirectoryError | PermissionError) or attempt == reading.TRIES:
                raise CheckpointError(f"Cannot read the checkpoint directory {folder}: {error.strerror}.") from error
        time.sleep(reading.PAUSE)
    raise AssertionError("the last attempt returns or raises")


def _is_listed(folder: pathlib.Path) -> bool:
    try:
        return folder.name in os.listdir(folder.parent)
    except FileNotFoundError:
        return _is_listed(folder.parent)
    except PermissionError:  # a parent that may be entered, but not listed
        return False
    except OSError:  # the storage does not tell: no reason to start from scratch
        return True


@contextlib.contextmanager
def _storage_errors(path: pathlib.Path) -> Iterator[None]:
    """Raises UnreadableError for an OSError."""
    try:
        yield
    except OSError as error:
        raise UnreadableError(path, error.strerror or error) from error


def _warn_of_ignored(folder: pathlib.Path) -> None:
    """A person may have put a checkpoint back, which looks like one that a replaced group has added."""
    listing = _list(folder)
    ignored = sorted(set(listing.checkpoints) - set(claims.valid(listing)))
    if ignored:
        logger.warning(
            "Ignoring %s in %s: added after a newer worker group had begun to save there, by an older one or by hand. "
            "To continue from one of them: python3 -m %s %s --use FILE",
            ", ".join(found.name for found in ignored), folder, claims.COMMAND, folder,
        )  # fmt: skip


def _remove_abandoned(folder: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        for path in files.remove_abandoned(folder):
            logger.info("Removed %s, abandoned by a writer that died.", path)


def _tidy(folder: pathlib.Path, written: Found, claim: Claim, keep: int) -> None:
    """Removes what is no longer needed. Errors are only logged, because the checkpoint itself is safe."""
    try:
        listing = claims.list_directory(folder)
        if listing.claim.number == claim.number:  # otherwise, the newer group tidies
            _keep_newest(folder, [found for found in claims.valid(listing) if found < written], keep - 1)
    except OSError as error:
        logger.warning("Cannot remove old checkpoints in %s: %s.", folder, error)


def _keep_newest(folder: pathlib.Path, earlier: list[Found], keep: int) -> None:
    """Keeps the newest `keep` of these that are intact, because corrupt ones must not displace them. Leaves what cannot
    be read: it may be intact. Raises OSError."""
    kept = 0
    for found in earlier:
        path = folder / found.name
        try:
            if kept < keep:
                intact.verify(path, found.step, read_shards=False)
                kept += 1
                continue
        except CorruptCheckpointError as error:
            logger.warning("Removed the corrupt checkpoint %s: %s.", path, error)
        except OSError as error:
            if error.errno != errno.ENOENT:
                logger.warning("Keeping the checkpoint %s, which cannot be read: %s.", path, error.strerror)
            continue
        path.unlink(missing_ok=True)


def cannot_write(target: pathlib.Path, error: Exception) -> CheckpointError:
    """error: an OSError, or what torch made of one."""
    reason = getattr(error, "strerror", None) or first_line(error)
    if getattr(error, "errno", errno.ENOSPC) in (errno.ENOSPC, errno.EDQUOT):
        with contextlib.suppress(OSError):
            reason += f" ({shutil.disk_usage(target.parent).free / 2**20:.0f} MiB are free)"
    return CheckpointError(f"Cannot write the checkpoint {target}: {reason}. Earlier checkpoints are untouched.")
