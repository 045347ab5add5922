"""Where the output of workers goes: torchrun's --redirects, --tee, --log-dir, --local-ranks-filter and line prefixes.

Standard error always passes through the agent, so that tracebacks of scripts without `@record` are reported too.
Standard output does only if it is copied. The agent's loop only reads; AsyncWriters write.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import string
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.async_writer import CONSOLES, FILES, AsyncWriter, File, Target
from elasticjob_runtime.workers.failure import TRACEBACK

TAIL_BYTES = 16384
"""How much of the end of a worker's stderr is kept for its failure report."""

LINE_BYTES = 65536
"""Longer lines are split if lines get a prefix."""

READS_AT_ONCE = 16
"""Reads of 64 KiB before the loop continues: a worker that writes without pause must not block it."""

STDOUT, STDERR = 1, 2

_TRACEBACK = TRACEBACK.encode()


def parse_std(text: str) -> dict[int, int] | int:
    """Parses torchrun's syntax of --redirects and --tee: one value for all local ranks, or `rank:value,rank:value`. 0:
    none, 1: stdout, 2: stderr, 3: both.

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


MAX_COPY = 16 * 1024 * 1024
"""Bytes of an error file or a flight recorder that are kept; 2,000 collectives with their stacks are 2 MB."""


class LogDirectory:
    """`<base>/<run-id>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json}`, as torchrun lays it out.

    The disk of the logs may hang, and the agent must not: after the start, only the writing thread touches it. So
    workers write their error files, which the agent reads, in the agent's private directory, and the logs get copies.
    """

    def __init__(self, settings: LogSettings, run_id: str, private: str) -> None:
        """`private`: the agent's own directory, removed with the agent. It has the error files, and the logs' directory
        if nothing is logged."""
        keeps_logs = bool(settings.redirects or settings.tee or settings.stdout_filters or settings.stderr_filters)
        base = settings.directory or (tempfile.mkdtemp(prefix="elasticrun_") if keeps_logs else private)
        Path(base).mkdir(parents=True, exist_ok=True)
        safe = re.sub(r"[^\w.-]", "_", run_id)
        self.path = Path(tempfile.mkdtemp(prefix=f"{safe}_", dir=base))
        self.path.chmod(0o755)
        self._own = self.path if base == private else Path(tempfile.mkdtemp(prefix=f"{safe}_", dir=private))

    def worker(self, round_number: int, local_rank: int) -> Path:
        """The directory of the worker's logs, which may not exist yet."""
        return self.path / f"attempt_{round_number}" / str(local_rank)

    def error_file(self, round_number: int, local_rank: int) -> Path:
        """The worker's error file, in an existing directory. Raises OSError."""
        folder = self._own / f"attempt_{round_number}" / str(local_rank)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "error.json"

    def copy_error_file(self, error_file: Path, name: str = "") -> None:
        """Copies an error file to the logs, asynchronously. `name`: its name there, if that is not the same."""
        if self._own == self.path:
            return
        with contextlib.suppress(OSError):
            if error_file.stat().st_size > MAX_COPY:
                return
            content = error_file.read_bytes()
            there = self.path / error_file.relative_to(self._own)
            copy = Destination.of_file(there.parent.parent / name if name else there)
            copy.put(content)
            copy.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Destination:
    """A console, or a log file that only one sink writes to."""

    writer: AsyncWriter
    target: Target

    @staticmethod
    def of_file(path: Path) -> Destination:
        file = File(path)
        FILES.call_after(file, file.create)
        return Destination(FILES, file)

    def put(self, data: bytes) -> None:
        self.writer.put(self.target, data)

    def close(self) -> None:
        if isinstance(self.target, File):
            self.writer.call_after(self.target, self.target.close)


class Sink:
    """One stream of one worker: the reading end of a pipe, and the destinations of what it reads. Never blocks."""

    def __init__(
        self,
        fd: int,
        consoles: Sequence[Destination],
        *,
        prefix: bytes = b"",
        filtered: tuple[Destination, tuple[bytes, ...]] | None = None,
        files: Sequence[Destination] = (),
    ) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self._consoles = consoles
        self._files = files
        self._prefix = prefix
        self._filtered = filtered
        self._line = b""
        self._tail = bytearray()
        self.closed = False
        self.traceback_at: float | None = None
        """Unix time at which a Python traceback last began; None if there was none."""

    @property
    def tail(self) -> str:
        return self._tail.decode(errors="replace")

    @property
    def full(self) -> AsyncWriter | None:
        """A destination's writer that is full. Until it has room, the worker's output stays in its pipe."""
        writers = [destination.writer for destination in (*self._consoles, *self._files)]
        return next((writer for writer in writers if writer.full), None)

    def pump(self) -> bool:
        """Reads what is available, within limits. Returns False if the writing end is closed."""
        for _ in range(READS_AT_ONCE):
            if self.full:
                return True
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._handle(data)
        return True

    def close(self) -> None:
        """Reads what is left and closes. If a grandchild still holds the writing end, its later output is lost."""
        self.closed = True
        self._drain()
        if self._line:
            self._put_line(self._line)
        os.close(self.fd)
        for destination in (*self._files, *([self._filtered[0]] if self._filtered else [])):
            destination.close()

    def _drain(self) -> None:
        for _ in range(READS_AT_ONCE):
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return
            if not data:
                return
            self._handle(data)

    def _handle(self, data: bytes) -> None:
        if _TRACEBACK in self._tail[1 - len(_TRACEBACK) :] + data:
            self.traceback_at = time.time()
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        for file in self._files:
            file.put(data)
        if not self._prefix and self._filtered is None:
            for console in self._consoles:
                console.put(data)
            return
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > LINE_BYTES:  # such as a progress bar
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            self._put_line(line)

    def _put_line(self, line: bytes) -> None:
        for console in self._consoles:
            console.put(self._prefix + line + b"\n")
        if self._filtered is not None and any(word in line for word in self._filtered[1]):
            self._filtered[0].put(self._prefix + line + b"\n")


class SinkReader:
    """Reads sinks on the event loop. A sink whose destination is full is not read until there is room."""

    def __init__(self, event_loop: EventLoop) -> None:
        self._event_loop = event_loop

    def add(self, sink: Sink) -> None:
        self._event_loop.add_reader(sink.fd, lambda: self._read(sink))

    def close(self, sink: Sink) -> None:
        with contextlib.suppress(KeyError):
            self._event_loop.remove_reader(sink.fd)
        sink.close()

    def _read(self, sink: Sink) -> None:
        if not sink.pump():
            self._event_loop.remove_reader(sink.fd)
        elif (writer := sink.full) is not None:
            self._event_loop.remove_reader(sink.fd)
            writer.call_when_room(lambda: self._event_loop.call_soon(lambda: self._resume(sink)))

    def _resume(self, sink: Sink) -> None:
        if not sink.closed:
            self.add(sink)


def open_sink(
    settings: LogSettings, directory: Path, stream: int, *, local_rank: int, rank: int, role: str
) -> tuple[Sink | None, BinaryIO | None]:
    """Returns (sink, the writing end for the worker) of one stream, or (None, None) if the worker inherits the
    agent's."""
    name = "stdout" if stream == STDOUT else "stderr"
    redirected, teed = (wants(std, local_rank, stream) for std in (settings.redirects, settings.tee))
    hidden = settings.ranks_filter is not None and local_rank not in settings.ranks_filter
    filters = settings.stdout_filters if stream == STDOUT else settings.stderr_filters
    if stream == STDOUT and not (redirected or teed or hidden or filters):
        return None, None
    consoles = [] if hidden or (redirected and not teed) else [Destination(CONSOLES[stream], stream)]
    files = [Destination.of_file(directory / f"{name}.log")] if redirected or teed else []
    prefix = _prefix(settings, local_rank, rank, role) if teed else b""
    filtered: tuple[Destination, tuple[bytes, ...]] | None = None
    if filters:
        filtered = (
            Destination.of_file(directory.parent / f"filtered_{name}.log"),
            tuple(word.encode() for word in filters),
        )
    reading, writing = os.pipe()
    return Sink(reading, consoles, prefix=prefix, filtered=filtered, files=files), os.fdopen(writing, "wb")


def _prefix(settings: LogSettings, local_rank: int, rank: int, role: str) -> bytes:
    template = settings.prefix_template or "[${role_name}${local_rank}]:"
    values = {"role_name": role, "local_rank": local_rank, "rank": rank, "hostname": socket.gethostname()}
    return string.Template(template).safe_substitute(values).encode()
