"""The demo's output: a live line on a terminal, a line per change elsewhere, and the table at the end."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hack.demo.timeline import Timeline, View, is_news, one_line, table


class Screen:
    """Shows the timeline as it grows. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(Text(""), console=console, transient=True, refresh_per_second=8) if console.is_terminal else None
        )
        self._shown = View()
        self._entries = 0

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, timeline: Timeline, now: float) -> None:
        for entry in timeline.entries[self._entries :]:
            self._say(
                entry.time - timeline.applied_at,
                f"[bold]{escape(entry.what)}[/]" + (f" [dim]({escape(entry.detail)})[/]" if entry.detail else ""),
            )
        self._entries = len(timeline.entries)
        if self._live:
            self._live.update(Text(f"{now - timeline.applied_at:6.1f} s  {one_line(timeline.view)}"))
        elif is_news(self._shown, timeline.view):
            self._say(now - timeline.applied_at, one_line(timeline.view))
        self._shown = timeline.view

    def _say(self, seconds: float, text: str) -> None:
        self._console.print(f"{seconds:6.1f} s  {text}", soft_wrap=True)


def print_table(console: Console, timeline: Timeline) -> None:
    """Prints the timeline."""
    rows = Table("when", "what", "", title="Timeline", title_justify="left")
    for row in table(timeline):
        rows.add_row(*map(escape, row))
    console.print(rows)
