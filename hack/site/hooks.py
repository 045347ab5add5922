"""Hooks of mkdocs, named in mkdocs.yml.

Pages of docs/ link to files all over the repository, as a forge shows them. The site has no other host to send readers
to: every file that a page links to becomes a page of the site, below repository/, and links lead there.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from hack.checks.links import slug
from hack.checks.pages import tracked
from hack.site import repository

logger = logging.getLogger("mkdocs.hooks.site")
"""A warning fails the build."""
FILLED = {
    "Design records": re.compile(r"docs/design/.*\.md"),
    "Examples": re.compile(r"examples/[^/]+/README\.md"),
}
"""Sections of the navigation that have all files of a kind."""
LOADED = re.compile(r"""<(?:script|img|iframe|source|video)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)""")
LINKED = re.compile(r"""<link\b(?![^>]*\brel=["']?canonical)[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)""")
"""Addresses of scripts, styles, fonts and images on other hosts: the site works without a network. Links that readers
follow do not count."""


def anchor(heading: str, _separator: str) -> str:
    """The anchor of a heading, as links in Markdown expect it. Named in mkdocs.yml."""
    return slug(heading)


def on_config(config: Any) -> Any:
    """Fills in the empty sections of the navigation, and the version in the footer."""
    root = _root(config)
    config.copyright = f"ElasticJob {(root / 'VERSION').read_text(encoding='utf-8').strip()}, Apache-2.0"
    _fill(config.nav, tracked(root))
    return config


def _root(config: Any) -> Path:
    """The root of the repository that the site describes."""
    return Path(config.config_file_path).parent


def _fill(items: list[Any], files: list[str]) -> None:
    for item in items:
        for title, below in item.items() if isinstance(item, dict) else ():
            if title in FILLED:
                item[title] = [repository.page_of(path) for path in sorted(files) if FILLED[title].fullmatch(path)]
            elif isinstance(below, list):
                _fill(below, files)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages made of files outside docs/."""
    from mkdocs.structure.files import File

    root = _root(config)
    for page, text in repository.pages(root, frozenset(tracked(root))).items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Points links at the pages of the site. The home page needs no navigation of its own."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return repository.with_links(repository.with_plain_pipes(markdown), page.file.src_uri)


def on_post_page(output: str, page: Any, **_more: Any) -> str:
    """Warns of anything that a page would load from another host."""
    for address in LOADED.findall(output) + LINKED.findall(output):
        logger.warning("%s loads %s from another host", page.file.src_uri, address)
    return output
