"""What the demo and the quick start show: a line per change as it happens, a live line on a terminal, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text


class Screen:
    """A context manager. Seconds count from the first change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text(""), console=console, transient=True, refresh_per_second=8)
        self._shown = ""

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, seconds: float, what: str, detail: str = "") -> None:
        more = f" [dim]({escape(detail)})[/]" if detail else ""
        self._console.print(f"{seconds:6.1f} s  [bold]{escape(what)}[/]{more}", soft_wrap=True)

    def now(self, seconds: float, state: str, figures: str = "") -> None:
        """The state now. Without a terminal, `figures`, which change all the time, are not shown by themselves."""
        if self._console.is_terminal:
            self._live.update(Text(f"{seconds:6.1f} s  {state}  {figures}"))
        elif state != self._shown:
            self._console.print(f"{seconds:6.1f} s  {state}  {figures}".rstrip(), soft_wrap=True, markup=False)
        self._shown = state


def print_table(
    console: Console, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False
) -> None:
    """`numbers`: all columns but the first."""
    table = Table(heads[0], *(Column(escape(head), justify="right" if numbers else "left") for head in heads[1:]))
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
