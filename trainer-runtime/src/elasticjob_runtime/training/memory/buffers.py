"""Memory that survives this process: a memfd, mapped. Standard library only."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os

from elasticjob_runtime.training.memory import format as snapshot_format
from elasticjob_runtime.training.memory.format import Header, InvalidSnapshotError

_libc = ctypes.CDLL(None)
_MADV_POPULATE_WRITE = 23
"""Not in mmap's constants."""


class NoMemoryError(Exception):
    """The kernel gave no memory for a snapshot."""


class Buffer:
    """One memfd, which one process writes. Grows, and never shrinks: a reader's mapping stays valid."""

    def __init__(self, fd: int, lock: int = -1) -> None:
        """Takes over both descriptors. lock: a second description of the same memory, locked; -1: for reading only.
        Raises OSError or ValueError if `fd` cannot be mapped."""
        self.fd = fd
        self._lock = lock
        self._populated = 0
        self.memory = _mapped(fd)

    @classmethod
    def create(cls) -> Buffer:
        fd = os.memfd_create("elasticjob-snapshot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        os.ftruncate(fd, snapshot_format.HEADER_SIZE)
        lock = _lock(fd)
        assert lock is not None, "no other process has it yet"
        return cls(fd, lock)

    @classmethod
    def adopt(cls, fd: int) -> Buffer | None:
        """The buffer of a process that has ended; None while it, or a child of it, may still write. Takes over the
        descriptor, unless it returns None or raises OSError or ValueError."""
        lock = _lock(fd)
        if lock is None:
            return None
        try:
            return cls(fd, lock)
        except (OSError, ValueError):
            os.close(lock)
            raise

    def reserve(self, size: int) -> None:
        """Makes sure that there are `size` bytes to write to, all at once: page by page it takes longer. Other threads
        of Python run meanwhile. Raises NoMemoryError."""
        if size > len(self.memory):
            try:
                os.posix_fallocate(self.fd, 0, size)
            except OSError as error:
                raise NoMemoryError(os.strerror(error.errno or errno.ENOMEM)) from error
            self.memory = _mapped(self.fd)
            self._populated = 0
        if self._populated < size:
            _populate(self.memory)
            self._populated = len(self.memory)

    def header(self) -> Header | None:
        try:
            return snapshot_format.read(self.memory)
        except InvalidSnapshotError:
            return None

    def close(self) -> None:
        """The mapping goes when nothing uses it any more."""
        self.release()
        os.close(self.fd)

    def release(self) -> None:
        """Lets another process write; leaves the descriptor to the caller."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _mapped(fd: int) -> mmap.mmap:
    return mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_SHARED)


def _populate(memory: mmap.mmap) -> None:
    """Like mmap.madvise, which would stop all threads. Does nothing before Linux 5.14."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), _MADV_POPULATE_WRITE)


def _lock(fd: int) -> int | None:
    """A descriptor of its own that is locked until it is closed, at the latest when this process has ended; None if
    another process has the lock. `fd` itself would not do: the agent has it too."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(own)
        return None
    return own
