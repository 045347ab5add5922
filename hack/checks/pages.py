"""The files that are checked, and the code in a Markdown page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TEXT = frozenset({".cfg", ".json", ".md", ".mod", ".py", ".toml", ".tpl", ".txt", ".yaml"})
"""Suffixes of the files that people read and write."""


SHELL = frozenset({"", "bash", "console", "sh", "shell"})
"""Languages of code blocks that hold commands."""


class Problem(NamedTuple):
    """Something to correct."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Code:
    """A code span, a code block or a command in one, with the line it starts on."""

    line: int
    text: str
    language: str = ""
    """Of a fenced block."""


def tracked(root: Path) -> list[str]:
    """Paths of all files that git tracks or would add, relative to `root`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return [path for path in listed if (root / path).is_file()]


def texts(root: Path, paths: list[str]) -> Iterator[tuple[str, str]]:
    """Path and content of each text file."""
    for path in paths:
        if Path(path).suffix in TEXT or Path(path).name in ("Dockerfile", "Makefile"):
            yield path, (root / path).read_text(encoding="utf-8")


def blocks(markdown: str) -> list[Code]:
    """The fenced code blocks of a page, whole, and the lines of its indented ones."""
    found: list[Code] = []
    fence, language, start, lines = "", "", 0, list[str]()
    code_may_start = True
    for number, line in enumerate(markdown.splitlines(), 1):
        mark = re.match(r"\s*(```+)\s*(\w*)", line)
        if fence:
            if mark and mark[1].startswith(fence):
                found.append(Code(start, "\n".join(lines), language))
                fence = ""
            else:
                lines.append(line)
        elif mark:
            fence, language, start, lines = mark[1], mark[2], number + 1, []
        else:
            indented = line.startswith("    ") and code_may_start
            if indented:
                found.append(Code(number, line[4:]))
            code_may_start = indented or not line.strip()
    return found


def code_lines(markdown: str) -> set[int]:
    """Numbers of the lines inside code blocks."""
    return {
        number for block in blocks(markdown) for number in range(block.line, block.line + block.text.count("\n") + 1)
    }


def spans(markdown: str) -> list[Code]:
    """The code spans of a page, outside of its blocks."""
    inside = code_lines(markdown)
    return [
        Code(number, span)
        for number, line in enumerate(markdown.splitlines(), 1)
        if number not in inside
        for span in re.findall(r"`([^`]+)`", line)
    ]


def commands(markdown: str) -> list[Code]:
    """The lines of code blocks, joined where a backslash continues them, and all code spans."""
    found: list[Code] = []
    joined, start = "", 0
    for block in blocks(markdown):
        if block.language not in SHELL:
            continue
        for number, line in enumerate(block.text.splitlines(), block.line):
            start = start if joined else number
            joined += line.rstrip("\\").strip() + " "
            if not line.endswith("\\"):
                found.append(Code(start, re.sub(r"^\$ ", "", joined.strip())))
                joined = ""
    return found + spans(markdown)
