"""Paragraphs that fit the terminal. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from elasticjob.views.table import plain

WIDTH = 100
"""Of text where there is no terminal."""
_NARROWEST = 30

HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, of 7 bits and of 8, and those that change the direction of text."""
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-9;?]*[A-Za-z]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[^\[\]]"
)
_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")


def visible(text: str, *, colors: bool = False) -> str:
    """Without what could change the terminal or the order of what is read, except for colors if wanted."""
    if not HIDDEN.search(text):
        return text
    pieces = _COLOR.split(text)  # every other one is a color
    return "".join(
        (piece if colors else "") if number % 2 else HIDDEN.sub("", _ESCAPES.sub("", piece))
        for number, piece in enumerate(pieces)
    )


def plain_lines(text: str) -> list[str]:
    """The lines of a text of others, without control characters."""
    return [plain(line) for line in text.strip().splitlines()]


def wrapped(lines: Sequence[str], mark: str, indent: str, width: int | None) -> Iterator[str]:
    """The lines after a mark, continued below each other. Commands and names are not broken."""
    room = max(_NARROWEST, (width or WIDTH) - len(indent))
    first = True
    for line in lines:
        for part in textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""]:
            yield (mark if first else indent) + part
            first = False
