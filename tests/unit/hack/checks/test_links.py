"""Links, anchors and files that the docs name but that do not exist are found."""

from __future__ import annotations

import pytest

from hack.checks.links import anchors, broken_links, missing_files, missing_pages

PAGES = {
    "README.md": "",
    "docs/a.md": "# Title\n\n## What `x` does, and why\n\n## Twice\n\n## Twice\n\n```\n# no heading\n```\n",
}
FILES = {*PAGES, "hack/cluster/nodes.py"}


@pytest.mark.parametrize(
    "link", ["b.md", "../docs/b.md", "a.md#nothing", "#nothing", "../hack/nowhere", "a.md#no-heading"]
)
def test_a_broken_link_is_found(link: str) -> None:
    pages = PAGES | {"docs/from.md": f"a\n[text]({link})"}
    (problem,) = broken_links("docs/from.md", pages, FILES | set(pages))
    assert problem.line == 2


@pytest.mark.parametrize(
    "link", ["a.md", "../README.md", "a.md#what-x-does-and-why", "a.md#twice-1", "../hack/cluster", "https://x.example"]
)
def test_a_valid_link_passes(link: str) -> None:
    pages = PAGES | {"docs/from.md": f"[text]({link})"}
    assert broken_links("docs/from.md", pages, FILES | set(pages)) == []


def test_links_in_code_are_ignored() -> None:
    pages = {"docs/from.md": "`[a](b.md)`\n\n```\n[a](b.md)\n```\n"}
    assert broken_links("docs/from.md", pages, set(pages)) == []


def test_anchors_come_from_headings_outside_code() -> None:
    assert anchors(PAGES["docs/a.md"]) == {"title", "what-x-does-and-why", "twice", "twice-1"}


def test_a_docstring_that_names_a_missing_page_is_found() -> None:
    (problem,) = missing_pages("x.py", "# see docs/a.md\n# and docs/old.md", FILES)
    assert problem == ("x.py", 2, "docs/old.md is not there")


def test_a_file_named_by_the_end_of_its_path_passes() -> None:
    page = "`cluster/nodes.py`, `nodes.py`, `cluster/gone.py`, `train.py`, `a.b`"
    (problem,) = missing_files("docs/a.md", page, FILES)
    assert problem.message == "no file is called cluster/gone.py"
