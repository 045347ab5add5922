"""Tables that fit the terminal, with wide characters measured as terminals show them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

GAP = 3
_READABLE, _SMALLEST = 24, 8
"""Texts are cut to the first before columns are left out, and to the second after that."""
_STYLES = {"good": "32", "busy": "36", "warn": "33", "bad": "31", "dim": "2", "bold": "1"}
_CSS = {
    "good": "color:#1a7f37",
    "busy": "color:#0969da",
    "warn": "color:#9a6700",
    "bad": "color:#cf222e",
    "dim": "color:#6e7781",
    "bold": "font-weight:600",
}
"""For notebooks."""


class Cell(NamedTuple):
    text: str
    style: str = ""
    """good, busy, warn, bad, dim or bold."""


@dataclass(frozen=True)
class Column:
    title: str
    priority: int = 0
    """Columns with the highest numbers are left out first when the terminal is too narrow."""
    right: bool = False
    shrinks: bool = False
    """Its texts may be cut."""


def paint(text: str, style: str, *, color: bool) -> str:
    """The text in a style of a terminal."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if color and style and text else text


def plain(text: str) -> str:
    """Without control characters, which could change the terminal, and on one line."""
    return "".join(character if character.isprintable() else " " for character in text)


def render(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], *, width: int | None = None, color: bool = False
) -> list[str]:
    """One line per row, after the titles. `width`: of the terminal; None: as wide as it takes, for pipes."""
    return next(render_pages(columns, [rows], width=width, color=color))


def render_pages(
    columns: Sequence[Column],
    pages: Iterable[Sequence[Sequence[Cell | str]]],
    *,
    width: int | None = None,
    color: bool = False,
) -> Iterator[list[str]]:
    """The lines of a table whose rows come page by page. The first page decides which columns are shown; a later one
    makes them wider where it must."""
    titles = [Cell(column.title, "bold") for column in columns]
    shown: list[int] | None = None
    widths = [0] * len(columns)
    for rows in pages:
        lines = [*([titles] if shown is None else []), *([_cell(value) for value in row] for row in rows)]
        widths = [max([known, *(cell_len(line[number].text) for line in lines)]) for number, known in enumerate(widths)]
        if shown is None:
            shown = _fit(columns, widths, width)
        elif width is not None:
            _shrink(columns, widths, shown, width, _SMALLEST)
        yield [_line(columns, line, widths, shown, color=color) for line in lines]


def html(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> str:
    """The same as an HTML table."""
    lines = [[Cell(column.title, "bold") for column in columns], *([_cell(value) for value in row] for row in rows)]
    cells = (
        "".join(f"<td style='{_CSS.get(cell.style, '')}'>{escape(cell.text)}</td>" for cell in row) for row in lines
    )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _cell(value: Cell | str) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(value)
    return Cell(plain(cell.text), cell.style)


def _fit(columns: Sequence[Column], widths: list[int], width: int | None) -> list[int]:
    """Numbers of the columns to show. Cuts texts a little, then leaves columns out, then cuts more: see `widths`."""
    shown = list(range(len(columns)))
    if width is None:
        return shown
    while not _shrink(columns, widths, shown, width, _READABLE):
        least = max(shown, key=lambda number: (columns[number].priority, number))
        if columns[least].priority == 0:
            _shrink(columns, widths, shown, width, _SMALLEST)
            break
        shown.remove(least)
    return shown


def _shrink(columns: Sequence[Column], widths: list[int], shown: Sequence[int], width: int, smallest: int) -> bool:
    """Cuts the widest columns, to no less than `smallest`. Returns whether the rest fits."""
    while (room := _total(widths, shown) - width) > 0:
        able = [number for number in shown if columns[number].shrinks and widths[number] > smallest]
        if not able or (smallest == _READABLE and sum(widths[number] - smallest for number in able) < room):
            return False
        widest = max(able, key=lambda number: widths[number])
        widths[widest] = max(smallest, widths[widest] - room)
    return True


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[number] for number in shown) + GAP * (len(shown) - 1)


def _line(
    columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], shown: Sequence[int], *, color: bool
) -> str:
    parts = []
    for number in shown:
        text, size = row[number].text, widths[number]
        if cell_len(text) > size:
            text = set_cell_size(text, size - 1) + "…"
        padding = " " * (size - cell_len(text))
        painted = paint(text, row[number].style, color=color)
        last = number == shown[-1]
        parts.append(padding + painted if columns[number].right else painted + ("" if last else padding))
    return (" " * GAP).join(parts).rstrip()
