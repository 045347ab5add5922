"""Paragraphs that fit the terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from elasticjob.views.table import plain

WIDTH = 100
"""Of text where there is no terminal."""
_NARROWEST = 30


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
