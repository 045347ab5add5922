"""The threat model names a test that exists for each line, or says that nothing stops the attack."""

from __future__ import annotations

import pytest

from hack.checks.promises import THREAT_MODEL, missing_tests, unproved

TESTS = """
def test_one() -> None:
    ...

async def test_two(x) -> None:
    ...

@pytest.mark.nightly
@pytest.mark.alone
def test_slow() -> None:
    ...
"""
FILES = {"tests/unit/test_a.py": TESTS}


@pytest.mark.parametrize("name", ["test_one", "test_two"])
def test_a_test_that_exists_passes(name: str) -> None:
    assert list(missing_tests("docs/a.md", f"see `tests/unit/test_a.py::{name}`", FILES)) == []


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("tests/unit/test_a.py::test_three", "has no test_three"),
        ("tests/unit/test_a.py::test_on", "has no test_on"),
        ("tests/unit/test_b.py::test_one", "is not there"),
        ("tests/unit/test_a.py::test_slow", "runs only in `make nightly`"),
    ],
)
def test_a_test_that_was_renamed_or_deleted_is_found(named: str, says: str) -> None:
    (problem,) = missing_tests("docs/a.md", f"a\nsee `{named}`", FILES)
    assert problem.line == 2
    assert says in str(problem)


TABLE = """| attack | what stops it | test |
|---|---|---|
| steal a key | a lock | `tests/unit/test_a.py::test_one` |
| cut a wire | **not stopped** | |
"""


def test_each_line_of_the_threat_model_names_a_test_or_says_that_nothing_stops_it() -> None:
    assert list(unproved(THREAT_MODEL, TABLE)) == []
    (problem,) = unproved(THREAT_MODEL, TABLE + "| break in | a fence | |\n")
    assert problem.line == 5
    assert list(unproved("docs/other.md", TABLE + "| break in | a fence | |\n")) == []
