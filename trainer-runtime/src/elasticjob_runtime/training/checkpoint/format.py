"""The file of one checkpoint: the bytes of the serializer, then a footer that shows whether they are intact.

    payload                      as the serializer wrote it
    step          8 bytes        big-endian
    payload size  8 bytes        big-endian
    SHA-256      32 bytes        over payload, step and payload size
    magic         8 bytes        last, so that a file cut anywhere lacks it

It is one file, so that one rename commits it; a manifest next to it could get separated. The footer is at the end, so
that `torch.load` and other readers of ZIP files can open the file without this package.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import struct
from typing import BinaryIO

MAGIC = b"EJCKPT\x00\x01"
_NUMBERS = struct.Struct(">QQ")
_FOOTER = struct.Struct(f">{_NUMBERS.size}s32s{len(MAGIC)}s")
FOOTER_SIZE = _FOOTER.size
_CHUNK = 1 << 20


class CorruptCheckpointError(Exception):
    """The file is not an intact checkpoint. The message, the second half of a sentence, says why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    step: int
    size: int
    """Bytes of the payload."""
    digest: bytes


class PayloadWriter(io.BufferedIOBase):
    """The file that the serializer writes to: it passes bytes on to `file` and updates their checksum. It cannot seek,
    so the checksum is always right."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0
        self.error: OSError | None = None
        """The first error of the file system, which serializers in C++ may replace with their own."""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # any buffer, as every binary file takes
        try:
            self._file.write(view)
        except OSError as error:
            self.error = self.error or error
            raise
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def finish(self, step: int) -> None:
        """Appends the footer."""
        numbers = _NUMBERS.pack(step, self._size)
        self._hash.update(numbers)
        self._file.write(_FOOTER.pack(numbers, self._hash.digest(), MAGIC))


def read_footer(file: BinaryIO) -> Footer:
    """Cheap check of a file: reads its last 56 bytes. Raises CorruptCheckpointError."""
    length = file.seek(0, os.SEEK_END)
    if length == 0:
        raise CorruptCheckpointError("it is empty")
    if length < FOOTER_SIZE:
        raise CorruptCheckpointError(f"it ends after {length} bytes, in the middle of a write")
    file.seek(length - FOOTER_SIZE)
    numbers, digest, magic = _FOOTER.unpack(file.read(FOOTER_SIZE))
    if magic != MAGIC:
        raise CorruptCheckpointError(f"it ends after {length} bytes without the footer of a finished write")
    step, size = _NUMBERS.unpack(numbers)
    if size != length - FOOTER_SIZE:
        raise CorruptCheckpointError(f"it holds {length - FOOTER_SIZE} bytes where its footer says {size}")
    return Footer(step=step, size=size, digest=digest)


def verify(file: BinaryIO, footer: Footer) -> None:
    """Full check: reads the whole file. Raises CorruptCheckpointError."""
    checksum = hashlib.sha256()
    file.seek(0)
    left = footer.size
    while left:
        chunk = file.read(min(_CHUNK, left))
        if not chunk:
            raise CorruptCheckpointError(f"it lost {left} bytes while it was read")
        checksum.update(chunk)
        left -= len(chunk)
    checksum.update(_NUMBERS.pack(footer.step, footer.size))
    if checksum.digest() != footer.digest:
        raise CorruptCheckpointError("its checksum does not match its content")


def open_payload(file: BinaryIO, footer: Footer) -> BinaryIO:
    """A binary file of only the payload, for the deserializer."""
    return io.BufferedReader(_Payload(file, footer.size), _CHUNK)


class _Payload(io.RawIOBase):
    """The first `size` bytes of `file`."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # RawIOBase's buffer is wider in typeshed only
        wanted = min(len(buffer), max(0, self._size - self._position))
        self._file.seek(self._position)
        data = self._file.read(wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
