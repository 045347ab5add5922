"""Files that appear whole or not at all, on local and on shared file systems. Called by `directory` only.

A file is written under a temporary name in the same folder, flushed to the disk, renamed, and the folder flushed. The
temporary name tells the kernel, the process and a random part, so that two writers never share one. The writer holds a
lock on its temporary file: the kernel drops the lock when the writer dies, however it dies, which is how the next
writer tells an abandoned file from one in use.
"""

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
"""Age at which a temporary file is abandoned where its lock proves nothing: written on another machine, or the file
system has no locks. Far longer than the pause between two writes to one file, which is what keeps a file young."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<kernel>[0-9a-f]+)\.\d+\.[0-9a-f]+\.tmp")
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS}


@contextlib.contextmanager
def replace_atomically(target: pathlib.Path, before_commit: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """A new file that becomes `target` when the block ends well, and vanishes when it raises. Raises OSError.

    `before_commit` is called when the file is on the disk, right before it gets its name; it may raise to prevent that.
    """
    temporary, file = create_temporary(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            before_commit()
            temporary.rename(target)  # still locked: nobody may take the file for abandoned in between
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def make_directory(path: pathlib.Path) -> None:
    """Makes a folder and its parents, so that they survive a power loss. Raises OSError."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: pathlib.Path) -> None:
    """Flushes names and renames in a folder to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:  # some network file systems write names through and refuse
            raise
    finally:
        os.close(descriptor)


def remove_abandoned(directory: pathlib.Path, reference: float) -> list[pathlib.Path]:
    """Removes the temporary files of writers that are dead, and returns them.

    `reference`: time of the file system, s: the modification time of a file just written there. The clocks of a file
    server and its clients differ.
    """
    removed = []
    for path in directory.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match is None:
            continue
        with contextlib.suppress(
            OSError
        ):  # another writer was quicker, or it is not ours to remove: a later save tries again
            if path.stat().st_mtime < reference - ABANDONED_AFTER_SECONDS:
                path.unlink()
                removed.append(path)
            elif match["kernel"] == _kernel() and _removed_unlocked(path):
                removed.append(path)
    return removed


def create_temporary(target: pathlib.Path) -> tuple[pathlib.Path, BinaryIO]:
    """A new file beside `target`, locked while it is open: nobody takes it for abandoned. Raises OSError."""
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
        file.close()  # a cleaner came between open and lock: once more


def _lock(file: BinaryIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _removed_unlocked(path: pathlib.Path) -> bool:
    """Removes the file if nobody holds its lock. Raises OSError, also where the file system has no locks."""
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
