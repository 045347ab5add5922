"""Reference pages that are generated from the code, wholly or in part. `python -m hack.reference` writes them."""

from __future__ import annotations

from collections.abc import Mapping

from hack.checks.pages import Problem
from hack.reference import cli, compatibility, conditions, contract, elasticjob, environment, migration

GENERATED = "\n<!-- Generated from the code by `make generate`. Do not edit. -->\n"


def pages() -> dict[str, str]:
    """Path, relative to the root of the repository -> text."""
    made = {
        "docs/reference/cli.md": cli.page(),
        "docs/reference/conditions.md": conditions.page(),
        "docs/reference/contract.md": contract.page(),
        "docs/reference/elasticjob.md": elasticjob.page(),
        "docs/reference/environment.md": environment.page(),
        "docs/reference/migration.md": migration.page(),
    }
    return {compatibility.PAGE: compatibility.page()} | {path: _with_note(text) for path, text in made.items()}


def _with_note(text: str) -> str:
    """The note follows the title, because mkdocs looks for the title in the first line."""
    title, _, rest = text.partition("\n")
    return f"{title}\n{GENERATED}{rest}"


def outdated(present: Mapping[str, str]) -> list[Problem]:
    """Reference pages that differ from the code. `present`: the text of every Markdown page by its path."""
    return [
        Problem(path, 1, "not up to date: run `make generate` and commit the result")
        for path, text in pages().items()
        if present.get(path) != text
    ]
