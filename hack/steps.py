"""Shows the progress of long operations: each step's name and reason, how long it took the last time on this machine,
its current state, and its outcome.

On a terminal the running steps are live lines; elsewhere each start, change and end is a line. Steps may run
concurrently (`concurrently`). Thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

T = TypeVar("T")

LINE_EVERY = 10.0
"""Minimum seconds between two lines of one step if the output is not a terminal."""

CACHE = Path(os.environ.get("ELASTICJOB_CACHE", "~/.cache/elasticjob")).expanduser()
"""Outside the checkout, so that all checkouts on this machine share it."""


class StepError(Exception):
    """A program that a step started has failed; the message names it, its last lines and its log."""


class Step:
    """One running step. `say` shows its current state."""

    def __init__(self, on_change: Callable[[str], None], at_most_every: float) -> None:
        self._on_change = on_change
        self._at_most_every = at_most_every
        self._shown_at = time.monotonic()

    def say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._shown_at >= self._at_most_every:
            self._shown_at = now
            self._on_change(text)


class _Display:
    """The live lines on a terminal. One per process, because two would overwrite each other."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[detail]}"),
            console=console,
            transient=True,
        )
        self._users = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1 and self.console.is_terminal:
                self.progress.start()

    def stop(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self.console.is_terminal:
                self.progress.stop()


_SHARED = _Display(Console(highlight=False))


class Steps:
    """The steps of one command; use as a context manager. Several may be in use at once: they share the terminal."""

    def __init__(self, console: Console | None = None, timings: Path = CACHE / "timings.json") -> None:
        self._display = _Display(console) if console else _SHARED
        self.console = self._display.console
        self._progress = self._display.progress
        self._timings = _Timings(timings)

    def __enter__(self) -> Steps:
        self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    @contextlib.contextmanager
    def step(self, name: str, why: str = "", usually: float | None = None) -> Iterator[Step]:
        """Shows a step while the body runs. `usually`: duration on 2 cores in seconds, shown until it has been measured
        on this machine."""
        here = self._timings.get(name)
        known = (
            f"took {here:.0f} s last time"
            if here is not None
            else f"takes about {usually:.0f} s on 2 cores"
            if usually
            else ""
        )
        notes = "; ".join(part for part in (why, known) if part)
        started = time.monotonic()
        self.console.print(f"[bold]·[/] {name}" + (f" [dim]({notes})[/]" if notes else ""), soft_wrap=True)
        task = self._progress.add_task(name, total=None, detail="")
        try:
            yield Step(lambda text: self._change(task, name, text), 0.0 if self.console.is_terminal else LINE_EVERY)
        except BaseException:
            self.console.print(f"[bold red]✗[/] {name} [dim]failed after {time.monotonic() - started:.1f} s[/]")
            raise
        else:
            took = time.monotonic() - started
            self._timings.put(name, took)
            self.console.print(f"[bold green]✓[/] {name} [dim]{took:.1f} s[/]")
        finally:
            self._progress.remove_task(task)

    def _change(self, task: TaskID, name: str, text: str) -> None:
        if self.console.is_terminal:
            width = max(20, self.console.width - len(name) - 16)
            self._progress.update(task, detail=text[:width])
        else:
            self.console.print(f"  {name}: {text}", markup=False, soft_wrap=True)


def concurrently(*calls: Callable[[], T]) -> list[T]:
    """Runs the calls concurrently and returns their results in order. Waits for all of them, then raises the first
    error."""
    with ThreadPoolExecutor(max_workers=max(1, len(calls))) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.result() for future in futures]


def run_logged(
    argv: Sequence[str], log: Path, on_line: Callable[[str], None] | None = None, env: dict[str, str] | None = None
) -> None:
    """Runs a program with its output in `log` (appended) and each line given to `on_line`.

    Raises StepError with the last lines if it exits with anything but 0 or does not exist.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: list[str] = []
    with log.open("a", encoding="utf-8") as sink:
        sink.write(f"$ {' '.join(argv)}\n")
        sink.flush()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            raise StepError(f"{argv[0]} is not installed (needed for: {' '.join(argv[:3])} ...)") from None
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                sink.write(line)
                tail = [*tail[-19:], line.rstrip()]
                if on_line:
                    on_line(line.rstrip())
    if process.returncode != 0:
        raise StepError(
            f"{argv[0]} exited with {process.returncode}. Its last lines (all of it: {log}):\n" + "\n".join(tail)
        )


class _Timings:
    """How long each step took on this machine: a small JSON file. A broken or unwritable file is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def get(self, name: str) -> float | None:
        value = self._read().get(name)
        return float(value) if isinstance(value, int | float) else None

    def put(self, name: str, seconds: float) -> None:
        with self._lock, contextlib.suppress(OSError):
            timings = self._read()
            timings[name] = round(seconds, 1)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(timings, indent=1, sort_keys=True), encoding="utf-8")
            temporary.replace(self._path)

    def _read(self) -> dict[str, object]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}
