"""Records which worker variables code reads from `os.environ`, such as a module that asks for RANK when it is
imported."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import types
from collections.abc import Iterator, Mapping

from elasticjob_runtime.workers.zygote.preload import WORKER_VARIABLES


@dataclasses.dataclass(slots=True)
class Reads:
    values: dict[str, str | None] = dataclasses.field(default_factory=dict)
    """Worker variable -> the value at its first read; None: it was not set."""
    by_package: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    """Top-level package whose import read them -> the worker variables."""


@contextlib.contextmanager
def recorded() -> Iterator[Reads]:
    """Records what is read in the block, by any thread."""
    reads = Reads()
    _replace_data(_RecordingDict(os.environ._data, reads))  # type: ignore[attr-defined]
    try:
        yield reads
    finally:
        _replace_data(dict(os.environ._data))  # type: ignore[attr-defined]


def importing_package() -> str:
    """The top-level package of the module that the calling thread is importing; empty if there is none."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] if frame is not None else ""


class _RecordingDict(dict[bytes, bytes]):
    """Stands in for the dictionary inside `os.environ`."""

    VARIABLES = frozenset(name.encode() for name in WORKER_VARIABLES)

    def __init__(self, data: Mapping[bytes, bytes], reads: Reads) -> None:
        super().__init__(data)
        self._reads = reads

    def __getitem__(self, key: bytes) -> bytes:
        self._record(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._record(key)
        return super().__contains__(key)

    def _record(self, key: object) -> None:
        if isinstance(key, bytes) and key in self.VARIABLES:
            name, value = key.decode(), self.get(key)
            self._reads.values.setdefault(name, None if value is None else value.decode(errors="surrogateescape"))
            self._reads.by_package.setdefault(importing_package(), set()).add(name)


def _replace_data(data: dict[bytes, bytes]) -> None:
    os.environ._data = os.environb._data = data  # type: ignore[attr-defined]
