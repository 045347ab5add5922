"""The examples in docstrings of agent and worker processes are right."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import elasticjob_runtime
import pytest

ROOT = Path(elasticjob_runtime.__file__).parent
FILES = [path for part in ("agent", "workers") for path in sorted((ROOT / part).rglob("*.py"))]
MODULES = [
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in FILES if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_show_what_the_function_returns(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert (found.failed, found.attempted > 0) == (0, True)
