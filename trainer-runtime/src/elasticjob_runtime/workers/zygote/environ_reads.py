"""Records which worker variables code reads from `os.environ`, such as a module that asks for RANK when it is
imported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from elasticjob_runtime.workers.zygote.preload import WORKER_VARIABLES


@contextlib.contextmanager
def recorded() -> Iterator[dict[str, str | None]]:
    """Records what is read in the block, by any thread: worker variable -> the value at its first read; None: it was
    not set."""
    reads: dict[str, str | None] = {}
    _replace_data(_RecordingDict(os.environ._data, reads))  # type: ignore[attr-defined]
    try:
        yield reads
    finally:
        _replace_data(dict(os.environ._data))  # type: ignore[attr-defined]


class _RecordingDict(dict[bytes, bytes]):
    """Stands in for the dictionary inside `os.environ`."""

    VARIABLES = frozenset(name.encode() for name in WORKER_VARIABLES)

    def __init__(self, data: Mapping[bytes, bytes], reads: dict[str, str | None]) -> None:
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
            self._reads.setdefault(name, None if value is None else value.decode(errors="surrogateescape"))


def _replace_data(data: dict[bytes, bytes]) -> None:
    os.environ._data = os.environb._data = data  # type: ignore[attr-defined]
