"""The examples in docstrings of the tools and benchmarks are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

from hack.images.recipe import ROOT

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("hack", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "    >>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_docstring_are_true(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed
