"""`make quick`: format, lint and types of the Python files that differ from main, and unit tests of their packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[1]
TESTS = {
    "api/src/elasticjob_api": "api",
    "client/src/elasticjob": "client",
    "operator/src/elasticjob_operator": "operator",
    "trainer-runtime/src/elasticjob_runtime": "runtime",
    "hack": "hack",
    "benchmarks": "benchmarks",
}
"""Folder of code -> the folder in tests/unit that has the same packages."""
SEPARATE = "examples/tensor-parallel/"
"""mypy checks it by itself: its folder is not an identifier."""


def main() -> int:
    files = changed()
    folders = packages(files)
    if not files:
        print("quick: no Python file differs from main")
        return 0
    typed = [path for path in files if not path.startswith(SEPARATE)]
    commands = [["ruff", "format", "--check", *files], ["ruff", "check", *files]]
    if typed:
        commands.append(["mypy", *typed])
    if folders:
        commands.append(["pytest", "-q", "-n", "2", "-m", "not nightly", *folders])
    return max(
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode for command in commands
    )


def changed() -> list[str]:
    """The Python files that differ from where this branch left main, and those that git does not know yet."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    found = {*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")}
    return sorted(item for item in found if item.endswith(".py") and (ROOT / item).exists())


def packages(files: Iterable[str]) -> list[str]:
    """The folders of unit tests of the packages of `files`, none within another."""
    folders = {folder for path in files if (folder := _tests_of(PurePath(path))) is not None}
    return sorted(str(folder) for folder in folders if not folders.intersection(folder.parents))


def _tests_of(file: PurePath) -> PurePath | None:
    if file.is_relative_to("tests/unit"):
        return file.parent
    for code, tests in TESTS.items():
        if file.is_relative_to(code):
            folder = PurePath("tests/unit", tests, file.relative_to(code).parent)
            return next(parent for parent in (folder, *folder.parents) if (ROOT / parent).is_dir())
    return None


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True).stdout.split()


if __name__ == "__main__":
    sys.exit(main())
