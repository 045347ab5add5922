"""What the person sees: a line that moves on a terminal, one line per change elsewhere, and the table at the end."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hack.demo.timeline import Story, View, is_news, one_line, table


class Screen:
    """Shows the story as it grows; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(Text(""), console=console, transient=True, refresh_per_second=8) if console.is_terminal else None
        )
        self._shown = View()
        self._moments = 0

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, story: Story, now: float) -> None:
        for moment in story.moments[self._moments :]:
            self._say(
                moment.time - story.applied_at,
                f"[bold]{moment.what}[/]" + (f" [dim]({moment.detail})[/]" if moment.detail else ""),
            )
        self._moments = len(story.moments)
        if self._live:
            self._live.update(Text(f"{now - story.applied_at:6.1f} s  {one_line(story.view)}"))
        elif is_news(self._shown, story.view):
            self._say(now - story.applied_at, one_line(story.view))
        self._shown = story.view

    def _say(self, seconds: float, text: str) -> None:
        self._console.print(f"{seconds:6.1f} s  {text}", soft_wrap=True)


def print_table(console: Console, story: Story) -> None:
    """What happened when."""
    rows = Table("when", "what", "", title="what happened when", title_justify="left")
    for row in table(story):
        rows.add_row(*row)
    console.print(rows)
