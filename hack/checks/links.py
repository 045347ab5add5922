"""Links of Markdown pages, and the paths that pages and code name."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping

from hack.checks.pages import Problem, code_lines, spans
from hack.checks.steps import SAVED

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
NAMED_PAGE = re.compile(r"(?<![\w/.-])docs/[\w./-]+\.md\b")
NAMED_FILE = re.compile(r"(?!\.)[\w.-]+(?:/[\w.-]+)*\.(?:py|md|yaml|toml)")

OTHERS = {
    "train.py": "the reader's own script",
    "values.yaml": "a chart's values, also in other folders",
    "my-values.yaml": "the reader's own file",
    "torch/distributed/run.py": "torch's",
    "agent.py": "more than one",
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


def anchors(markdown: str) -> set[str]:
    """Anchors of all headings; a repeated one gets -1, -2 ..."""
    inside = code_lines(markdown)
    found: dict[str, int] = {}
    named: set[str] = set()
    for number, line in enumerate(markdown.splitlines(), 1):
        heading = HEADING.match(line)
        if heading and number not in inside:
            name = slug(heading[1])
            count = found[name] = found.get(name, -1) + 1
            named.add(f"{name}-{count}" if count else name)
    return named


def broken_links(page: str, pages: Mapping[str, str], files: Collection[str]) -> list[Problem]:
    """Relative links of `page` to a file, folder or anchor that is not there.

    `pages`: the text of every Markdown page by its path.
    """
    inside = code_lines(pages[page])
    found: list[Problem] = []
    for number, line in enumerate(pages[page].splitlines(), 1):
        targets = [] if number in inside else LINK.findall(re.sub(r"`[^`]*`", "", line))
        for target in targets:
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            resolved = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            if resolved not in files and not any(file.startswith(resolved + "/") for file in files):
                found.append(Problem(page, number, f"the link {target} leads to no file"))
            elif anchor and resolved in pages and anchor not in anchors(pages[resolved]):
                found.append(Problem(page, number, f"{resolved} has no heading #{anchor}"))
    return found


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
