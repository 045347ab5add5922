"""The paths that pages and code name, and what links look like. `mkdocs build --strict` finds broken links."""

from __future__ import annotations

import re
from collections.abc import Collection

from hack.checks.pages import Problem, spans
from hack.checks.steps import SAVED

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")
NAMED_PAGE = re.compile(r"(?<![\w/.-])docs/[\w./-]+\.md\b")
NAMED_FILE = re.compile(r"(?!\.)[\w.-]+(?:/[\w.-]+)*\.(?:py|md|yaml|toml)")

OTHERS = {
    "train.py": "the reader's own script",
    "install.yaml": "made by make release",
}
"""Files in code spans that are not, or not only, this repository's."""


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading.

    >>> slug("What `make test` does, and why")
    'what-make-test-does-and-why'
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")


def missing_pages(path: str, text: str, files: Collection[str]) -> list[Problem]:
    """Pages under docs/ that a file names and that are not there."""
    return [
        Problem(path, number, f"{name} is not there")
        for number, line in enumerate(text.splitlines(), 1)
        for name in NAMED_PAGE.findall(line)
        if name not in files
    ]


def missing_files(page: str, markdown: str, files: Collection[str]) -> list[Problem]:
    """Files that a page names in a code span, by the end of their path, and that are not there. A tutorial's reader
    saves some."""
    found: list[Problem] = []
    saved = SAVED.findall(markdown)
    for span in spans(markdown):
        if not NAMED_FILE.fullmatch(span.text) or span.text in OTHERS or span.text in saved:
            continue
        if not any(file == span.text or file.endswith("/" + span.text) for file in files):
            found.append(Problem(page, span.line, f"no file is called {span.text}"))
    return found
