"""Where the output of worker processes goes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from elasticjob_runtime.workers.async_writer import CONSOLES, FILES, AsyncWriter, File
from elasticjob_runtime.workers.logs import (
    STDERR,
    STDOUT,
    TAIL_BYTES,
    Destination,
    LogDirectory,
    LogSettings,
    Sink,
    open_sink,
    parse_std,
)


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("3", 3), ("0:1,1:3", {0: 1, 1: 3}), ("12:2", {12: 2})])
def test_redirects_and_tee_are_parsed(text: str, expected: Mapping[int, int] | int) -> None:
    assert parse_std(text) == expected


@pytest.mark.parametrize("text", ["", "4", "-1", "0:4", "0:1,", "a", "0:1 1:2", "1:", ":1"])
def test_invalid_redirects_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="neither 0, 1, 2 or 3 nor a list"):
        parse_std(text)


class Pipe:
    """A sink whose both ends the test holds. Its destinations are files in memory."""

    def __init__(self, *, prefix: bytes = b"", words: tuple[bytes, ...] = (), file: Path | None = None) -> None:
        reading, self.writing = os.pipe()
        self._console, self._filtered = os.memfd_create("console"), os.memfd_create("filtered")
        self.writer = AsyncWriter()
        self.filtered_file = File(Path(f"/proc/self/fd/{self._filtered}"))
        filtered = (Destination(self.writer, self.filtered_file), words) if words else None
        files = [Destination.of_file(file)] if file else []
        self.sink = Sink(
            reading, [Destination(self.writer, self._console)], prefix=prefix, filtered=filtered, files=files
        )

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        os.set_blocking(self.writing, False)
        while view:
            view = view[os.write(self.writing, view) :]
            self.sink.pump()

    def end(self) -> None:
        os.close(self.writing)
        self.sink.close()
        assert self.writer.flush(10)
        assert FILES.flush(10)

    @property
    def console(self) -> bytes:
        assert self.writer.flush(10)
        return os.pread(self._console, 1 << 24, 0)

    @property
    def filtered(self) -> bytes:
        assert self.writer.flush(10)
        return os.pread(self._filtered, 1 << 24, 0)


def test_output_is_passed_on_at_once() -> None:
    pipe = Pipe()
    pipe.write(b"half a li")
    assert pipe.console == b"half a li"
    pipe.write(b"ne\n")
    assert pipe.sink.tail == "half a line\n"
    pipe.end()


def test_pump_returns_whether_more_output_may_follow() -> None:
    pipe = Pipe()
    assert pipe.sink.pump()
    os.close(pipe.writing)
    assert not pipe.sink.pump()
    pipe.sink.close()


def test_only_whole_lines_are_prefixed() -> None:
    pipe = Pipe(prefix=b"[0]:")
    pipe.write(b"one\ntw")
    assert pipe.console == b"[0]:one\n"
    pipe.write(b"o\n\nthree")
    pipe.end()
    assert pipe.console == b"[0]:one\n[0]:two\n[0]:\n[0]:three\n"


def test_a_file_gets_the_output_unchanged(tmp_path: Path) -> None:
    pipe = Pipe(prefix=b"[0]:", file=tmp_path / "stderr.log")
    pipe.write(b"one\nno end")
    pipe.end()
    assert (tmp_path / "stderr.log").read_bytes() == b"one\nno end"


def test_a_line_without_end_takes_bounded_memory() -> None:
    pipe = Pipe(prefix=b"[0]:")
    for _ in range(40):
        pipe.write(b"\r 50%" * 1000)
    assert pipe.console.count(b"[0]:") >= 2
    pipe.end()


def test_lines_with_a_filter_word_are_copied() -> None:
    pipe = Pipe(words=(b"loss", b"error"))
    pipe.write(b"loss 1\nnothing\nan error\n")
    assert pipe.filtered == b"loss 1\nan error\n"
    assert pipe.console == b"loss 1\nnothing\nan error\n"
    pipe.end()
    assert pipe.filtered_file.closed, "otherwise each restart would leave a file open"


def test_the_tail_of_the_output_is_bounded() -> None:
    pipe = Pipe()
    for _ in range(10):
        pipe.write(b"x" * 60000)
    pipe.write(b"the end")
    assert len(pipe.sink.tail) == TAIL_BYTES
    assert pipe.sink.tail.endswith("the end")
    pipe.end()


def test_the_time_of_a_traceback_is_noted_even_if_it_arrives_in_pieces() -> None:
    pipe = Pipe()
    pipe.write(b"all is well\nTraceback (most re")
    moments = [pipe.sink.traceback_at]
    before = time.time()
    pipe.write(b"cent call last):\n")
    moments.append(pipe.sink.traceback_at)
    assert moments[0] is None
    assert moments[1] is not None
    assert moments[1] >= before
    pipe.end()


def test_a_console_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    pipe = Pipe(file=tmp_path / "log")
    with open("/dev/full", "wb", buffering=0) as full:
        pipe.sink._consoles = [Destination(pipe.writer, full.fileno())]
        pipe.write(b"into the void\n")
        pipe.end()
    assert (tmp_path / "log").read_bytes() == b"into the void\n"


def test_log_folders_have_torchruns_layout(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    directory = LogDirectory(LogSettings(directory=str(tmp_path / "logs")), "team/run 1", str(tmp_path / "own"))
    assert directory.path.parent == tmp_path / "logs"
    assert directory.path.name.startswith("team_run_1_")
    assert directory.worker(3, 1) == directory.path / "attempt_3" / "1"
    error_file = directory.error_file(3, 1)
    assert (tmp_path / "own") in error_file.parents, (
        "the agent reads it: its disk must not be that of the logs, which may hang"
    )
    error_file.write_text("{}")
    directory.copy_error_file(error_file)
    assert FILES.flush(10)
    assert (directory.worker(3, 1) / "error.json").read_text() == "{}"


def test_a_hanging_disk_does_not_block_the_agent_and_later_gets_all_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stdout.log")
    pipe = Pipe(file=tmp_path / "stdout.log")  # opening it hangs until there is a reader
    pipe.write(b"one\n")
    os.close(pipe.writing)
    pipe.sink.close()
    assert not FILES.flush(0.1)
    reading = os.open(tmp_path / "stdout.log", os.O_RDONLY)
    assert FILES.flush(10)
    assert os.read(reading, 100) == b"one\n"
    os.close(reading)


def test_a_default_log_folder_outlives_the_agent_only_if_logs_are_written(tmp_path: Path) -> None:
    assert LogDirectory(LogSettings(), "run", str(tmp_path)).path.parent == tmp_path
    kept = LogDirectory(LogSettings(redirects=3), "run", str(tmp_path)).path
    assert kept.parent.parent == Path(tempfile.gettempdir())
    shutil.rmtree(kept.parent)


@pytest.mark.parametrize(
    ("settings", "stream", "console", "file"),
    [
        (LogSettings(), STDERR, b"hello\n", None),
        (LogSettings(redirects=3), STDOUT, b"", b"hello\n"),
        (LogSettings(redirects={0: 2}), STDERR, b"hello\n", None),
        (LogSettings(redirects={1: 2}), STDERR, b"", b"hello\n"),
        (LogSettings(redirects=1), STDERR, b"hello\n", None),
        (LogSettings(tee=3), STDOUT, b"[trainer1]:hello\n", b"hello\n"),
        (LogSettings(tee=3, prefix_template="${rank}/${local_rank} "), STDOUT, b"5/1 hello\n", b"hello\n"),
        (LogSettings(ranks_filter=frozenset({0})), STDERR, b"", None),
        (LogSettings(ranks_filter=frozenset({1})), STDERR, b"hello\n", None),
        (LogSettings(ranks_filter=frozenset({0}), tee=3), STDOUT, b"", b"hello\n"),
    ],
)
def test_log_flags_decide_where_output_goes(
    settings: LogSettings,
    stream: int,
    console: bytes,
    file: bytes | None,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    (tmp_path / "1").mkdir()
    sink, end = open_sink(settings, tmp_path / "1", stream, local_rank=1, rank=5, role="trainer")
    assert sink is not None
    assert end is not None
    end.write(b"hello\n")
    end.close()
    sink.close()
    assert CONSOLES[stream].flush(10)
    assert FILES.flush(10)
    shown = capfdbinary.readouterr()
    assert (shown.out if stream == STDOUT else shown.err) == console
    log = tmp_path / "1" / ("stdout.log" if stream == STDOUT else "stderr.log")
    assert (log.read_bytes() if log.exists() else None) == file


def test_stdout_without_a_destination_is_the_agents_own(tmp_path: Path) -> None:
    assert open_sink(LogSettings(), tmp_path, STDOUT, local_rank=0, rank=0, role="r") == (None, None)
