"""What comes from elsewhere is pinned: actions of the workflows by commit, Python packages by hash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hack import requirements
from hack.checks.pages import Problem

WORKFLOWS = ".github/workflows/"
_USES = re.compile(r"\buses: *(\S+)(.*)")
_PINNED = re.compile(r"[^@]+@[0-9a-f]{40}")
_VERSION = re.compile(r" # v\d+\.\d+\.\d+")


def unpinned_actions(path: str, text: str) -> Iterator[Problem]:
    """A tag can be moved to another commit; the comment says which version the commit is."""
    if not path.startswith(WORKFLOWS):
        return
    for number, line in enumerate(text.splitlines(), 1):
        found = _USES.search(line)
        if found is None or found[1].startswith("./"):
            continue
        if not _PINNED.fullmatch(found[1]) or not _VERSION.fullmatch(found[2]):
            yield Problem(path, number, f"{found[1]}: pin it by commit, and name the version: NAME@COMMIT # v1.2.3")


def outdated_requirements(root: Path) -> Iterator[Problem]:
    for lock in requirements.LOCKS:
        for problem in requirements.problems(lock, root):
            yield Problem(lock.path, 1, f"{problem}: run make requirements")
