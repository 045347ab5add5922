"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

from hack.images.recipe import ROOT

SOURCES = [ROOT / part / "src" for part in ("api", "client", "operator", "trainer-runtime")]
FILES = [
    (path, root)
    for folder, root in [*((source, source) for source in SOURCES), (ROOT / "hack", ROOT), (ROOT / "benchmarks", ROOT)]
    for path in sorted(folder.rglob("*.py"))
    if "    >>> " in path.read_text(encoding="utf-8")
]
MODULES = [
    pytest.param(
        ".".join(path.relative_to(root).with_suffix("").parts),
        marks=pytest.mark.torch if "training" in path.parts else (),
    )
    for path, root in FILES
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_docstring_are_true(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed
