"""Atomic file writes on local and shared file systems. Used by `directory` only.

A file is written under a temporary name in the same directory, flushed to the disk and renamed, and the directory is
flushed. The temporary name contains the kernel's boot id, the process id and a random part, so that two writers never
share one. The writer holds a lock on its temporary file, which the kernel releases when the writer dies: so the next
writer can tell an abandoned file from one in use."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import pathlib
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import BinaryIO

ABANDONED_AFTER_SECONDS = 3600.0
"""Age at which a temporary file counts as abandoned if its lock proves nothing, because it was written on another
machine or the file system has no locks. Much longer than the time between two writes to a file."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<kernel>[0-9a-f]+)\.\d+\.[0-9a-f]+\.tmp")
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS}


@contextlib.contextmanager
def replace_atomically(
    target: pathlib.Path, before_commit: Callable[[], pathlib.Path] | None = None
) -> Iterator[BinaryIO]:
    """Opens a new file that becomes `target` at the end of the block, and is removed if the block raises. Raises
    OSError.

    `before_commit` is called when the file is on the disk, right before the rename. It returns the name for it, or
    raises to prevent that.
    """
    temporary, file = create_temporary(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            name = before_commit() if before_commit is not None else target
            temporary.rename(name)  # still locked, so that it does not count as abandoned
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def create(target: pathlib.Path, data: bytes) -> bool:
    """Writes a new file, for only one of several processes; False: there is one of that name. Raises OSError."""
    temporary, file = create_temporary(target)
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if not _link(temporary, target):
                return False
        sync_directory(target.parent)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: pathlib.Path, target: pathlib.Path) -> bool:
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _reserve_and_rename(temporary, target)
    return True


def _reserve_and_rename(temporary: pathlib.Path, target: pathlib.Path) -> bool:
    """For file systems without links. A reader in between sees an empty file."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        return False
    temporary.rename(target)
    return True


def make_directory(path: pathlib.Path) -> None:
    """Creates a directory and its parents, so that they survive a power loss. Raises OSError."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: pathlib.Path) -> None:
    """Flushes names and renames in a directory to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:  # some network file systems write names through and refuse
            raise
    finally:
        os.close(descriptor)


def remove_abandoned(directory: pathlib.Path) -> list[pathlib.Path]:
    """Removes the temporary files of dead writers, and returns them. Raises OSError."""
    now = _time_of(directory)
    removed = []
    for path in directory.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match is None:
            continue
        with contextlib.suppress(
            OSError
        ):  # another writer was faster, or it may not be removed: a later save tries again
            if path.stat().st_mtime < now - ABANDONED_AFTER_SECONDS:
                path.unlink()
                removed.append(path)
            elif match["kernel"] == _kernel() and _removed_unlocked(path):
                removed.append(path)
    return removed


def _time_of(directory: pathlib.Path) -> float:
    """The file system's time, s: the clocks of a file server and its clients differ. Raises OSError."""
    path, file = create_temporary(directory / "now")
    with file:
        try:
            return os.fstat(file.fileno()).st_mtime
        finally:
            path.unlink(missing_ok=True)


def create_temporary(target: pathlib.Path) -> tuple[pathlib.Path, BinaryIO]:
    """Opens a new file next to `target`, locked so that it does not count as abandoned. Raises OSError."""
    while True:
        name = f".{target.name}.{_kernel()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        path = target.with_name(name)
        file = open(path, "x+b")  # noqa: SIM115  # closed by the caller
        try:
            _lock(file)
            if os.fstat(file.fileno()).st_nlink:
                return path, file
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise
        file.close()  # removed between open and lock: try again


def _lock(file: BinaryIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _removed_unlocked(path: pathlib.Path) -> bool:
    """Removes the file if no process holds its lock. Raises OSError, also where the file system has no locks."""
    with open(path, "r+b") as file:  # for writing: network file systems give an exclusive lock on such files only
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # under the lock: a writer that opened it and waits for the lock will find it gone, and take another
        path.unlink()
        return True


@functools.cache
def _kernel() -> str:
    """Names the running kernel: the same in all containers of a machine, another after each boot. Locks are sure within
    one kernel."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "").strip()[:12]
    except OSError:  # not Linux
        return socket.gethostname().encode().hex()
