"""Shows the progress of long operations: each step's name and reason, how long it takes, its current state, and its
outcome.

On a terminal the running steps are live lines; elsewhere each start and end is a line, and each minute between them.
Steps may run concurrently (`concurrently`). Thread-safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
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

CACHE = Path(os.environ.get("ELASTICJOB_CACHE", "~/.cache/elasticjob")).expanduser()
"""Outside the checkout, so that all checkouts on this machine share it."""


REPORT_EVERY = 60.0
"""s between the lines of a running step where no terminal is."""


class StepError(Exception):
    """A program that a step started has failed; the message names it, its last lines and its log."""


_PROGRESS = Progress(
    SpinnerColumn(),
    TextColumn("{task.description}"),
    TimeElapsedColumn(),
    TextColumn("[dim]{task.fields[detail]}"),
    console=Console(highlight=False),
    transient=True,
)
"""The live lines on a terminal. One per process, because two would overwrite each other."""
_LOCK = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Step:
    """One running step."""

    task: TaskID
    name: str
    started: float

    def say(self, text: str) -> None:
        """Shows its current state: at once on a terminal, with the next line elsewhere."""
        _PROGRESS.update(self.task, detail=text[: max(20, _PROGRESS.console.width - 60)])

    def report_until(self, done: threading.Event, every: float) -> None:
        """A line each `every` seconds, for logs: without one, a long build looks like one that hangs."""
        while not done.wait(every):
            detail = next((task.fields["detail"] for task in _PROGRESS.tasks if task.id == self.task), "")
            line = f"  {self.name}: {time.monotonic() - self.started:.0f} s {detail}"
            _PROGRESS.console.print(line, markup=False, soft_wrap=True)


class Steps:
    """The steps of one command; use as a context manager. Several may be in use at once: they share the terminal."""

    users = 0
    console = _PROGRESS.console

    def __enter__(self) -> Steps:
        with _LOCK:
            Steps.users += 1
            if Steps.users == 1 and self.console.is_terminal:
                _PROGRESS.start()
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            Steps.users -= 1
            if Steps.users == 0:
                _PROGRESS.stop()

    @contextlib.contextmanager
    def step(self, name: str, why: str = "", usually: float | None = None) -> Iterator[Step]:
        """Shows a step while the body runs. `usually`: duration on 2 cores in seconds."""
        notes = "; ".join(filter(None, (why, f"takes about {usually:.0f} s on 2 cores" if usually else "")))
        self.console.print(f"[bold]·[/] {name}" + (f" [dim]({notes})[/]" if notes else ""), soft_wrap=True)
        started = time.monotonic()
        step = Step(_PROGRESS.add_task(name, total=None, detail=""), name, started)
        done = threading.Event()
        if not self.console.is_terminal:
            threading.Thread(target=step.report_until, args=(done, REPORT_EVERY), daemon=True).start()
        try:
            yield step
        except BaseException:
            self.console.print(f"[bold red]✗[/] {name} [dim]failed after {time.monotonic() - started:.1f} s[/]")
            raise
        else:
            self.console.print(f"[bold green]✓[/] {name} [dim]{time.monotonic() - started:.1f} s[/]")
        finally:
            done.set()
            _PROGRESS.remove_task(step.task)


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
