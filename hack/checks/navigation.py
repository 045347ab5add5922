"""Every page under docs/ is in the navigation of the site, once, and every page in the navigation is there.

`make docs` finds this too, but only after it has built the site.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import yaml

from hack.checks.pages import Problem

FILE = "mkdocs.yml"
MADE = "repository/"
"""Pages that hack/site makes of files outside docs/."""
FILLED = {
    "Design records": re.compile(r"docs/design/.*\.md"),
    "Examples": re.compile(r"examples/[^/]+/README\.md"),
}
"""Sections that hack/site fills with all files of a kind."""


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without importing the functions that it names."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def _pages(item: Any) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, list):
        for each in item:
            yield from _pages(each)
    elif isinstance(item, dict):
        yield from _pages(list(item.values()))


def problems(config: str, files: Collection[str]) -> list[Problem]:
    """`config`: the text of mkdocs.yml. `files`: paths of all Markdown files in the repository."""
    listed = Counter(_pages(yaml.load(config, _Loader)["nav"]))  # noqa: S506 a SafeLoader
    filled = FILLED["Design records"]
    written = {path.removeprefix("docs/") for path in files if path.startswith("docs/") and not filled.match(path)}
    there = written | {MADE + path for path in files}
    found = [f"docs/{page} is not in the navigation: add it to nav" for page in sorted(written - set(listed))]
    found += [f"nav lists {page}, which does not exist" for page in sorted(set(listed) - there)]
    found += [f"nav lists {page} {count} times" for page, count in sorted(listed.items()) if count > 1]
    return [Problem(FILE, 1, each) for each in found]
