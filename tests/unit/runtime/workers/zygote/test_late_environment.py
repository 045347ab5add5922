"""How a forked worker process applies its environment to libraries that are already imported."""

from __future__ import annotations

import builtins
import importlib

import pytest
from elasticjob_runtime.workers.zygote.late_environment import FirstImport, threads


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({}, None),
        ({"OMP_NUM_THREADS": "4"}, 4),
        ({"OMP_NUM_THREADS": " 4,2,1"}, 4),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": ""}, 4),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": "-1"}, None),
        ({"OMP_NUM_THREADS": "many"}, None),
    ],
)
def test_the_thread_count_is_the_one_torch_would_use(environment: dict[str, str], number: int | None) -> None:
    assert threads(environment) == number


@pytest.mark.parametrize(
    "how", ["import json.decoder", "from json import loads", "import importlib; importlib.import_module('json')"]
)
def test_the_first_import_is_reported_once_and_the_hook_removed(how: str) -> None:
    before = builtins.__import__, importlib.import_module
    seen: list[str] = []
    FirstImport({"json"}, lambda: seen.append("now")).watch()
    exec("import re")  # noqa: S102
    assert seen == []
    exec(how)  # noqa: S102
    exec(how)  # noqa: S102
    assert seen == ["now"]
    assert (builtins.__import__, importlib.import_module) == before


def test_an_import_hook_of_the_script_is_kept() -> None:
    original = builtins.__import__
    seen: list[str] = []
    FirstImport({"json"}, lambda: seen.append("now")).watch()
    ours = builtins.__import__

    def theirs(*given: object, **named: object) -> object:
        return ours(*given, **named)  # type: ignore[arg-type]

    builtins.__import__ = theirs  # type: ignore[assignment]
    try:
        exec("import json")  # noqa: S102
        exec("import json")  # noqa: S102
        assert seen == ["now"]
        assert builtins.__import__ is theirs
    finally:
        builtins.__import__ = original
