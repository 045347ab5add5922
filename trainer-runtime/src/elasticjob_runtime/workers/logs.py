"""Where the output of workers goes: torchrun's --redirects, --tee, --log-dir, --local-ranks-filter, line prefixes.

Standard error always passes through the agent, so that a script without `@record` has its traceback reported too; standard output only
where it is to be copied.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import string
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from elasticjob_runtime.workers.failure import TRACEBACK

TAIL_BYTES = 16384
"""How much of a worker's last stderr is kept for its failure report."""

LINE_BYTES = 65536
"""A longer line is cut where lines get a prefix."""

STDOUT, STDERR = 1, 2

_TRACEBACK = TRACEBACK.encode()


def parse_std(text: str) -> dict[int, int] | int:
    """torchrun's syntax of --redirects and --tee: one value for all local ranks, or `rank:value,rank:value`; 0 none, 1 out, 2 err, 3 both.

    Raises ValueError for anything else.

    >>> parse_std("0:1,1:3")
    {0: 1, 1: 3}
    """
    if re.fullmatch(r"[0-3]", text):
        return int(text)
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        return {int(rank): int(value) for rank, value in (part.split(":") for part in text.split(","))}
    raise ValueError(f"{text!r} is neither 0, 1, 2 or 3 nor a list like 0:1,1:3")


def wants(std: Mapping[int, int] | int, local_rank: int, stream: int) -> bool:
    value = std if isinstance(std, int) else std.get(local_rank, 0)
    return bool(value & stream)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    directory: str | None = None
    redirects: Mapping[int, int] | int = 0
    tee: Mapping[int, int] | int = 0
    ranks_filter: frozenset[int] | None = None
    prefix_template: str = ""
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()


class LogDirectory:
    """`<base>/<run-id>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json}`, as torchrun lays it out."""

    def __init__(self, settings: LogSettings, run_id: str) -> None:
        base = settings.directory or tempfile.mkdtemp(prefix="elasticrun_")
        Path(base).mkdir(parents=True, exist_ok=True)
        safe = re.sub(r"[^\w.-]", "_", run_id)
        self.path = Path(tempfile.mkdtemp(prefix=f"{safe}_", dir=base))
        self.path.chmod(0o755)

    def worker(self, epoch: int, local_rank: int) -> Path:
        path = self.path / f"attempt_{epoch}" / str(local_rank)
        path.mkdir(parents=True, exist_ok=True)
        return path


class Sink:
    """One stream of one worker: a pipe's reading end, and where its bytes go. Never blocks on reading."""

    def __init__(
        self, fd: int, outputs: list[BinaryIO], *, prefix: bytes, filtered: tuple[BinaryIO, tuple[bytes, ...]] | None, files: list[BinaryIO]
    ) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self._outputs = outputs
        self._files = files
        self._prefix = prefix
        self._filtered = filtered
        self._line = b""
        self._tail = bytearray()
        self.traceback_at: float | None = None
        """Unix time at which a Python traceback last began; None: there was none."""

    @property
    def tail(self) -> str:
        return self._tail.decode(errors="replace")

    def pump(self) -> bool:
        """Copies what is there. False: the writing end is closed."""
        while True:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._take(data)

    def close(self) -> None:
        """Takes what is left, then closes. A grandchild may still hold the writing end: its later output is lost, as its parent is."""
        self.pump()
        if self._line:
            self._put_line(self._line)
        os.close(self.fd)
        for file in (*self._files, *([self._filtered[0]] if self._filtered else [])):
            file.close()

    def _take(self, data: bytes) -> None:
        if _TRACEBACK in self._tail[1 - len(_TRACEBACK) :] + data:
            self.traceback_at = time.time()
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        for file in self._files:
            _write(file, data)
        if not self._prefix and self._filtered is None:
            for output in self._outputs:
                _write(output, data)
            return
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > LINE_BYTES:  # a progress bar that never ends its line
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            self._put_line(line)

    def _put_line(self, line: bytes) -> None:
        for output in self._outputs:
            _write(output, self._prefix + line + b"\n")
        if self._filtered is not None and any(word in line for word in self._filtered[1]):
            _write(self._filtered[0], self._prefix + line + b"\n")


def _write(file: BinaryIO, data: bytes) -> None:
    """A closed terminal or a full disk must not end the training."""
    try:
        file.write(data)
        file.flush()
    except OSError:
        pass


def open_sink(
    settings: LogSettings, directory: Path, stream: int, *, local_rank: int, rank: int, role: str
) -> tuple[Sink | None, BinaryIO | None]:
    """(sink, the writing end to give to the worker) of one stream; (None, None): the worker inherits the agent's own."""
    name = "stdout" if stream == STDOUT else "stderr"
    redirected, teed = (wants(std, local_rank, stream) for std in (settings.redirects, settings.tee))
    hidden = settings.ranks_filter is not None and local_rank not in settings.ranks_filter
    filters = settings.stdout_filters if stream == STDOUT else settings.stderr_filters
    if stream == STDOUT and not (redirected or teed or hidden or filters):
        return None, None
    console = sys.stdout.buffer if stream == STDOUT else sys.stderr.buffer
    outputs: list[BinaryIO] = [] if hidden or (redirected and not teed) else [console]
    files: list[BinaryIO] = [(directory / f"{name}.log").open("ab")] if redirected or teed else []
    prefix = _prefix(settings, local_rank, rank, role) if teed else b""
    filtered: tuple[BinaryIO, tuple[bytes, ...]] | None = None
    if filters:
        filtered_file = (directory.parent / f"filtered_{name}.log").open("ab")
        filtered = (filtered_file, tuple(word.encode() for word in filters))
    reading, writing = os.pipe()
    return Sink(reading, outputs, prefix=prefix, filtered=filtered, files=files), os.fdopen(writing, "wb")


def _prefix(settings: LogSettings, local_rank: int, rank: int, role: str) -> bytes:
    template = settings.prefix_template or "[${role_name}${local_rank}]:"
    values = {"role_name": role, "local_rank": local_rank, "rank": rank, "hostname": socket.gethostname()}
    return string.Template(template).safe_substitute(values).encode()
