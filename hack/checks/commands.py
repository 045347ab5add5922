"""Commands in the docs: make targets, modules and elasticrun's flags exist as written. The API server judges manifests
(tests/integration/test_docs.py)."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Collection, Iterator

from elasticjob_runtime.cli.arguments import build_parser

from hack.checks import SOURCES
from hack.checks.pages import Code, Problem, commands

FLAG_PAGES = ("docs/reference/elasticrun.md",)
"""Pages whose code spans that start with -- are elasticrun's flags."""
FLAGS_OF_OTHERS = {
    "--auto-compaction-mode": "etcd",
    "--auto-compaction-retention": "etcd",
    "--bcrypt-cost": "etcd",
    "--quota-backend-bytes": "etcd",
}
OURS = ("benchmarks", *SOURCES, "hack", "tests")


def targets(makefile: str) -> set[str]:
    """The targets of a Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))


def problems(page: str, markdown: str, known_targets: Collection[str], files: Collection[str]) -> Iterator[Problem]:
    """`make X`, `python -m X` and flags of elasticrun that do not exist."""
    for code in commands(markdown):
        made = re.findall(r"^make ([a-z][\w-]*)", code.text)
        run = re.findall(r"python3? (?:-\w+ )*-m ([\w.]+)", code.text)
        wrong = [
            *(f"make has no target {name}" for name in made if name not in known_targets),
            *(f"no module {name} can be run" for name in run if not _exists(name, files)),
            *(f"elasticrun has no flag {flag}" for flag in _flags(page, code) if flag not in _known_flags()),
        ]
        yield from (Problem(page, code.line, item) for item in wrong)


def _exists(module: str, files: Collection[str]) -> bool:
    top = module.split(".", maxsplit=1)[0]
    if top not in OURS:
        return importlib.util.find_spec(top) is not None
    path = SOURCES.get(top, "") + module.replace(".", "/")
    return f"{path}.py" in files or f"{path}/__main__.py" in files


@functools.cache
def _known_flags() -> frozenset[str]:
    """All flags of elasticrun, in both spellings, and those of others."""
    return frozenset(build_parser()._option_string_actions) | FLAGS_OF_OTHERS.keys()


def _flags(page: str, code: Code) -> Iterator[str]:
    """The flags in `code` that must be elasticrun's."""
    called = re.match(r"(?:elasticrun|python -m elasticjob_runtime) (.*)", code.text)
    if called:
        for word in called[1].split():
            if word.endswith(".py"):
                return
            if re.match(r"--[a-z]", word):
                yield word.partition("=")[0]
    elif page in FLAG_PAGES and re.match(r"--[a-z]", code.text):
        yield re.split(r"[ =]", code.text)[0]
