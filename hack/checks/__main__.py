"""`python -m hack.checks`: all checks over the whole repository; exit status 1 and a line each for problems."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hack.checks import ROOT, client, commands, examples, links, pins, promises, reasons, tables, words
from hack.checks.pages import Problem, texts, tracked
from hack.reference import outdated


def problems(root: Path = ROOT) -> Iterator[Problem]:
    """Everything to correct, file by file."""
    files = frozenset(tracked(root))
    content = dict(texts(root, sorted(files)))
    pages = {path: text for path, text in content.items() if path.endswith(".md")}
    targets = commands.targets(content["Makefile"])
    for path, text in content.items():
        yield from words.problems(path, text)
        yield from pins.unpinned_actions(path, text)
        if not path.startswith("hack/checks/"):
            yield from links.missing_pages(path, text, files)
    yield from pins.outdated_requirements(root)
    yield from outdated(pages)
    yield from reasons.unexplained(pages[reasons.PAGE])
    for page, text in pages.items():
        yield from links.missing_files(page, text, files)
        yield from promises.missing_tests(page, text, content)
        yield from promises.unproved(page, text)
        yield from commands.problems(page, text, targets, files)
        yield from examples.problems(page, text)
        yield from client.wrong_commands(page, text)
        yield from tables.missing(page, text)
        yield from tables.unknown_metrics(page, text)


def main() -> int:
    found = list(problems())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
