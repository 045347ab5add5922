"""What a reader of a tutorial does, as the page says it: files to save, and commands to run, in their order.

A block that is not a command is saved under the name in the sentence above it, "Save this as `train.py`:". Blocks of
`text` are output. A block that the page marks with `<!-- not run: REASON -->` is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hack.checks.examples import fenced

SAVED = re.compile(r"[Ss]ave (?:it|this|these)[^.`]* as `([^`]+)`")
"""Names of files."""


@dataclass(frozen=True)
class Save:
    line: int
    path: str
    text: str


@dataclass(frozen=True)
class Run:
    line: int
    script: str


class UnclearStepError(ValueError):
    """The page does not say what to do with a block."""


def steps(markdown: str) -> list[Save | Run]:
    """Raises UnclearStepError."""
    lines = markdown.splitlines()
    found: list[Save | Run] = []
    for block in fenced(markdown):
        if block.language == "sh":
            found.append(Run(block.line, block.text))
        elif block.language != "text":
            above = next((line for line in reversed(lines[: block.line - 2]) if line.strip()), "")
            saved = SAVED.search(above)
            if saved is None:
                raise UnclearStepError(f"line {block.line}: say above the block what to save it as")
            found.append(Save(block.line, saved[1], block.text + "\n"))
    return found
