"""The requirements files with hashes: what they contain, and how a difference is found offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack import requirements
from hack.requirements import LOCKS, Lock, needed, pinned, problems, written

LOCK = Lock(path="requirements.txt", what="a test", python="3.13", roots={"pyproject.toml": "dependencies"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project that needs aiosignal, which needs frozenlist."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["aiosignal>=1", "elasticjob-runtime==0.1.0"]\n'
    )
    (tmp_path / "constraints.txt").write_text("aiosignal==1.4.0\nfrozenlist==1.8.0\nunused==1\n")
    return tmp_path


def test_packages_that_others_need_are_included_and_our_own_are_not(root: Path) -> None:
    assert needed(LOCK, root) == {"aiosignal", "frozenlist"}


def test_markers_are_those_of_the_target_python(root: Path) -> None:
    """aiosignal needs typing-extensions before Python 3.13."""
    older = Lock(path=LOCK.path, what=LOCK.what, python="3.11", roots=LOCK.roots)
    assert needed(older, root) - needed(LOCK, root) == {"typing-extensions"}


def test_a_package_that_is_not_installed_is_named(root: Path) -> None:
    (root / "pyproject.toml").write_text('[project]\ndependencies = ["not-there"]\n')
    with pytest.raises(requirements.RequirementsError, match="not-there is not installed here"):
        needed(LOCK, root)


def test_a_written_file_has_no_problems(root: Path) -> None:
    versions = pinned((root / "constraints.txt").read_text(encoding="utf-8"))
    text = written(LOCK, {"aiosignal": ["aa"], "frozenlist": ["bb", "cc"]}, versions)
    (root / LOCK.path).write_text(text, encoding="utf-8")
    assert list(problems(LOCK, root)) == []
    assert "frozenlist==1.8.0 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n" in text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("aiosignal==1.4.0 \\\n    --hash=sha256:aa\n", "frozenlist is missing"),
        (
            "aiosignal==1.4.0 \\\n    --hash=sha256:aa\nfrozenlist==1.7.0 \\\n    --hash=sha256:bb\n",
            "frozenlist==1.7.0, but constraints.txt has 1.8.0",
        ),
        ("aiosignal==1.4.0\nfrozenlist==1.8.0 \\\n    --hash=sha256:bb\n", "aiosignal has no hash"),
        (
            "aiosignal==1.4.0 \\\n    --hash=sha256:aa\nfrozenlist==1.8.0 \\\n    --hash=sha256:bb\n"
            "rich==15 \\\n    --hash=sha256:cc\n",
            "rich is not needed",
        ),
    ],
)
def test_a_difference_is_found_without_the_index(root: Path, text: str, problem: str) -> None:
    (root / LOCK.path).write_text(text, encoding="utf-8")
    assert list(problems(LOCK, root)) == [problem]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.path))
def test_the_files_of_this_repository_name_no_index(lock: Lock) -> None:
    text = (requirements.ROOT / lock.path).read_text(encoding="utf-8")
    assert "://" not in text
    assert "index" not in text
