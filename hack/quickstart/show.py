"""The quick start's output: a live line on a terminal, a line per change and phase, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from hack.quickstart.timeline import PHASES, AgentEvent, Change, Kind, Row, Seen, rows

RESTARTING = """\
Three agents train examples/digits on this machine. One worker process is killed, then a fourth agent joins.
Each indented line is a phase of one agent: time since the cause, and duration.
"""
CONTINUING = """
The same with examples/session: the script has an ElasticSession, so that the other processes continue.
"""


class Screen:
    """Shows changes and phases as they are seen. A context manager."""

    def __init__(self, console: Console, introduction: str) -> None:
        self._console = console
        self._introduction = introduction
        self._live = (
            Live(Text(""), console=console, transient=True, refresh_per_second=8) if console.is_terminal else None
        )
        self._changes = 0
        self._shown: set[tuple[str, str, int]] = set()

    def __enter__(self) -> Screen:
        self._console.print(self._introduction, soft_wrap=True)
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, seen: Seen) -> None:
        lines = [(change.time, f"[bold]{_described(change)}[/]") for change in seen.changes[self._changes :]]
        self._changes = len(seen.changes)
        for event in sorted(seen.events, key=lambda event: event.time):
            is_new = event.event in PHASES and (event.event, *event.change) not in self._shown
            if is_new and not seen.is_finished:  # after that, agents see each other leave
                self._shown.add((event.event, *event.change))
                lines.append((event.time, _phase(event)))
        for time, text in sorted(lines):
            self._print(time - seen.changes[0].time, text)
        if self._live and seen.steps:
            line = seen.steps[-1]
            self._live.update(Text(f"         round {line.round}, {line.world} worker processes, step {line.step}"))

    def _print(self, seconds: float, text: str) -> None:
        self._console.print(f"{seconds:6.1f} s  {text}", soft_wrap=True)


def _described(change: Change) -> str:
    if change.kind is Kind.START:
        return "three agents start"
    if change.kind is Kind.AGENT_JOINS:
        return f"{change.member} starts"
    if change.kind is Kind.REPLACEMENT_JOINS:
        return f"{change.member} starts another process"
    return f"the worker process of {change.member} is killed (SIGKILL)"


def _phase(event: AgentEvent) -> str:
    """A phase that one agent has completed: time since the cause, and duration."""
    fields = event.fields
    figures = f"+{fields.get('since', 0) * 1000:,.0f} ms, took {fields.get('seconds', 0) * 1000:,.0f} ms"
    return f"  {event.member} {event.event:<10} {figures:<27} {_more(event)}".rstrip()


def _more(event: AgentEvent) -> str:
    if event.event == "detect":
        return str(event.fields.get("cause"))
    if event.event == "plan":
        return f"round {event.round}, {event.fields.get('size')} members: {event.fields.get('message')}"
    step = event.fields.get("step")
    return f"step {step}" if step is not None else ""


LINES: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("warm-up while the others train", lambda row: row.warm_up),
    ("detect: an agent notices", lambda row: row.phases.get("detect")),
    ("plan: an agent sees the new plan", lambda row: row.phases.get("plan")),
    ("stop: the old processes have exited", lambda row: row.phases.get("stop")),
    ("fork: all processes run the script", lambda row: row.phases.get("fork")),
    ("connect: the process group is up", lambda row: row.phases.get("connect")),
    ("interrupt: the step is interrupted", lambda row: row.phases.get("interrupt")),
    ("form: the new process group is up", lambda row: row.phases.get("form")),
    ("agree: all have the same state", lambda row: row.phases.get("agree")),
    ("restore: the checkpoint is loaded", lambda row: row.phases.get("restore")),
    ("first step", lambda row: row.phases.get("first-step")),
    ("training paused for", lambda row: row.paused),
    ("steps lost (a number)", lambda row: row.steps_lost),
    ("worker processes (a number)", lambda row: row.world),
)


def print_table(console: Console, seen: Seen) -> None:
    """Prints a column for each change, and what is known of the processes."""
    found = rows(seen)
    table = Table("milliseconds since:", *(Column(row.what, justify="right") for row in found))
    for name, figure in LINES:
        figures = [figure(row) for row in found]
        if any(each is not None for each in figures):
            table.add_row(name, *map(_number, figures))
    console.print(table)
    for member, pids in sorted(seen.pids.items()):
        console.print(f"{member}: {', then '.join(f'process {pid}' for pid in dict.fromkeys(pids))}", soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
