"""A page that readers of the site cannot reach is reported, and so is an entry of the navigation without a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.checks import navigation
from hack.checks.pages import tracked

ROOT = Path(__file__).parents[4]
CONFIG = """
slugify: !!python/name:hack.site.hooks.anchor
nav:
  - Home: index.md
  - Reference:
      - a.md
      - Project: [repository/SECURITY.md]
"""
FILES = {"docs/index.md", "docs/a.md", "docs/design/0001-a.md", "SECURITY.md", "README.md"}


def test_a_navigation_with_every_page_once_is_accepted() -> None:
    assert navigation.problems(CONFIG, FILES) == []


@pytest.mark.parametrize(
    ("config", "files", "problem"),
    [
        (CONFIG, FILES | {"docs/guides/b.md"}, "docs/guides/b.md is not in the navigation: add it to nav"),
        (CONFIG, FILES - {"docs/a.md"}, "nav lists a.md, which does not exist"),
        (CONFIG, FILES - {"SECURITY.md"}, "nav lists repository/SECURITY.md, which does not exist"),
        (CONFIG + "  - a.md\n", FILES, "nav lists a.md 2 times"),
    ],
)
def test_pages_and_navigation_that_differ_are_reported(config: str, files: set[str], problem: str) -> None:
    assert [each.message for each in navigation.problems(config, files)] == [problem]


def test_the_site_lists_every_page_of_this_repository() -> None:
    pages = [path for path in tracked(ROOT) if path.endswith(".md")]
    assert navigation.problems((ROOT / navigation.FILE).read_text(encoding="utf-8"), pages) == []
