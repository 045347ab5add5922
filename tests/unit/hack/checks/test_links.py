"""A link, an anchor or a file that the docs name and that is not there is found."""

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
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    pages = PAGES | {"docs/from.md": f"a\n[text]({link})"}
    (problem,) = broken_links("docs/from.md", pages, FILES | set(pages))
    assert problem.line == 2


@pytest.mark.parametrize(
    "link", ["a.md", "../README.md", "a.md#what-x-does-and-why", "a.md#twice-1", "../hack/cluster", "https://x.example"]
)
def test_a_link_that_leads_somewhere_passes(link: str) -> None:
    pages = PAGES | {"docs/from.md": f"[text]({link})"}
    assert broken_links("docs/from.md", pages, FILES | set(pages)) == []


def test_links_in_code_are_no_links() -> None:
    pages = {"docs/from.md": "`[a](b.md)`\n\n```\n[a](b.md)\n```\n"}
    assert broken_links("docs/from.md", pages, set(pages)) == []


def test_anchors_are_those_of_headings_outside_code() -> None:
    assert anchors(PAGES["docs/a.md"]) == {"title", "what-x-does-and-why", "twice", "twice-1"}


def test_a_docstring_that_names_a_page_which_moved_is_found() -> None:
    (problem,) = missing_pages("x.py", "# see docs/a.md\n# and docs/old.md", FILES)
    assert problem == ("x.py", 2, "docs/old.md is not there")


def test_a_file_that_a_page_names_is_found_by_the_end_of_its_path() -> None:
    page = "`cluster/nodes.py`, `nodes.py`, `cluster/gone.py`, `train.py`, `a.b`"
    (problem,) = missing_files("docs/a.md", page, FILES)
    assert problem.message == "no file is called cluster/gone.py"
