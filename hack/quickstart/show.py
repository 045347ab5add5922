"""What the person sees: a line that moves on a terminal, a line for every change, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from hack.quickstart.timeline import AgentEvent, Change, Kind, Row, Seen, rows

SAID = {"detect", "stop", "plan", "fork", "connect", "restore", "first-step"}


class Screen:
    """Shows what is seen as it grows; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(Text(""), console=console, transient=True, refresh_per_second=8) if console.is_terminal else None
        )
        self._changes = 0
        self._told: set[tuple[str, str, int]] = set()

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, seen: Seen) -> None:
        news = [(change.time, f"[bold]{_doing(change)}[/]") for change in seen.changes[self._changes :]]
        self._changes = len(seen.changes)
        for event in sorted(seen.events, key=lambda event: event.time):
            if event.event in SAID and (event.event, *event.change) not in self._told:
                self._told.add((event.event, *event.change))
                news.append((event.time, _saying(event)))
        for time, text in sorted(news):
            self._say(time - seen.changes[0].time, text)
        if self._live and seen.steps:
            line = seen.steps[-1]
            self._live.update(Text(f"         step {line.step}, {line.world} workers, plan {line.round}"))

    def _say(self, seconds: float, text: str) -> None:
        self._console.print(f"{seconds:6.1f} s  {text}", soft_wrap=True)


def _doing(change: Change) -> str:
    if change.kind is Kind.START:
        return "agents start"
    return f"{change.member} starts" if change.kind is Kind.AGENT_JOINS else f"kill -9 of {change.member}'s worker"


def _saying(event: AgentEvent) -> str:
    """A phase that one agent is through: how long after the cause, and how long it took."""
    fields = event.fields
    figures = f"+{fields.get('since', 0) * 1000:,.0f} ms, took {fields.get('seconds', 0) * 1000:,.0f}"
    return f"  {event.member} {event.event:<10} {figures:<24} {_more(event)}".rstrip()


def _more(event: AgentEvent) -> str:
    if event.event == "detect":
        return str(event.fields.get("cause"))
    if event.event == "plan":
        return f"plan {event.round}, {event.fields.get('size')} members: {event.fields.get('message')}"
    step = event.fields.get("step")
    return f"step {step}" if step is not None else ""


LINES: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("warming up, beside the running job", lambda row: row.warm_up),
    ("detect: an agent knows", lambda row: row.phases.get("detect")),
    ("plan: the new plan is seen", lambda row: row.phases.get("plan")),
    ("stop: the old workers are gone", lambda row: row.phases.get("stop")),
    ("fork: all workers run the script", lambda row: row.phases.get("fork")),
    ("connect: the process group is up", lambda row: row.phases.get("connect")),
    ("restore: the checkpoint is read", lambda row: row.phases.get("restore")),
    ("first step", lambda row: row.phases.get("first-step")),
    ("training stood still", lambda row: row.stood_still),
    ("steps lost", lambda row: row.steps_lost),
    ("workers", lambda row: row.world),
)


def print_table(console: Console, seen: Seen) -> None:
    """What happened when: a column for each change."""
    found = rows(seen)
    table = Table("ms since", *(Column(row.what, justify="right") for row in found))
    for name, figure in LINES:
        table.add_row(name, *(_number(figure(row)) for row in found))
    console.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
