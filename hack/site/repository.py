"""Files outside docs/ as pages of the site, and links to them. Pure but for reading the files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from hack.checks.links import LINK
from hack.checks.pages import code_lines

DOCS = "docs/"
FOLDER = "repository/"
"""Folder of the site with the pages that are made of other files."""

PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")
"""Pages of the site even where no page links to them, as every other README is."""

README, ABOUT = "/README.md", "/about.md"

LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json", ".sh": "sh"}


def page_of(path: str) -> str:
    """The page of the site, relative to docs/, for a path in the repository.

    A README outside docs/ becomes about.md, because mkdocs takes a README for the index of its section.

    >>> page_of("docs/design/README.md"), page_of("charts/values.yaml"), page_of("examples/digits")
    ('design/README.md', 'repository/charts/values.yaml.md', 'repository/examples/digits/about.md')
    """
    if path.startswith(DOCS):
        return path.removeprefix(DOCS) + ("" if Path(path).suffix else "/README.md")
    if path.endswith(README):
        return FOLDER + path.removesuffix(README) + ABOUT
    if path.endswith(".md"):
        return FOLDER + path
    return f"{FOLDER}{path}.md" if Path(path).suffix else f"{FOLDER}{path}{ABOUT}"


def path_of(page: str) -> str:
    """The path in the repository of the Markdown file that a page is made of."""
    if not page.startswith(FOLDER):
        return DOCS + page
    path = page.removeprefix(FOLDER)
    return path.removesuffix(ABOUT) + README if path.endswith(ABOUT) else path


def _targets(markdown: str, path: str) -> Iterator[tuple[re.Match[str], str, str]]:
    """The links of a file at `path` to other files: the match, the path in the repository, the anchor with its #."""
    inside = code_lines(markdown)
    start = 0
    for number, line in enumerate(markdown.splitlines(keepends=True), 1):
        for match in () if number in inside else LINK.finditer(markdown, start, start + len(line)):
            target, mark, anchor = match[1].partition("#")
            if target and not re.match(r"[a-z]+:", target):
                yield match, posixpath.normpath(posixpath.join(posixpath.dirname(path), target)), mark + anchor
        start += len(line)


def with_links(markdown: str, page: str) -> str:
    """The Markdown of `page` with links to files turned into links to pages of the site."""
    result, end = "", 0
    folder = posixpath.dirname(page)
    for match, path, anchor in _targets(markdown, path_of(page)):
        link = posixpath.relpath(page_of(path), folder or ".") + anchor
        result += markdown[end : match.start(1)] + link
        end = match.end(1)
    return result + markdown[end:]


def with_plain_pipes(markdown: str) -> str:
    """The Markdown with | instead of \\| in the code spans of tables: forges need the backslash there, and
    Python-Markdown shows it."""
    return re.sub(
        r"^\|.*$",
        lambda row: re.sub(r"`[^`]+`", lambda span: span[0].replace("\\|", "|"), row[0]),
        markdown,
        flags=re.MULTILINE,
    )


def pages(root: Path, files: Collection[str]) -> dict[str, str]:
    """Page -> Markdown, for the files outside docs/ that pages link to, for what these link to, and for all examples.

    `files`: paths of all files in the repository.
    """
    made: dict[str, str] = {}
    waiting = [path for path in files if path.endswith(".md") and (path.startswith(DOCS) or path.endswith(README))]
    waiting += [path for path in PROJECT if path in files]
    while waiting:
        path = waiting.pop()
        page = page_of(path)
        if page in made:
            continue
        source = path if path in files else f"{path}/README.md"
        if source not in files and not any(file.startswith(f"{path}/") for file in files):
            continue  # mkdocs names the link to it
        text = _text(root, source) if source in files else _listing(path, files)
        made[page] = text
        if source.endswith(".md"):
            waiting += (target for _, target, _ in _targets(text, source))
    return {page: text for page, text in made.items() if page.startswith(FOLDER)}


def _text(root: Path, path: str) -> str:
    text = (root / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"


def _listing(folder: str, files: Collection[str]) -> str:
    """A page for a folder without a README."""
    inside = sorted(path for path in files if path.startswith(f"{folder}/"))
    return f"# {folder}\n\n" + "".join(f"- `{path}`\n" for path in inside)
