"""What is installed to run the tests with another torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hack.torch_versions import ROOT, TESTS, TOOLS, requirements


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.9", "torch==2.9.*"), ("2.10", "torch==2.10.*"), ("2.9.1", "torch==2.9.1")],
)
def test_a_version_without_a_patch_is_its_newest_patch(version: str, expected: str) -> None:
    assert requirements(version, "")[0] == expected


def test_the_tools_of_the_tests_are_those_of_development_and_torch_is_not() -> None:
    _, *tools = requirements("2.9", (ROOT / "constraints.txt").read_text())
    assert sorted(line.partition("==")[0].lower() for line in tools) == sorted(TOOLS)


def test_the_tests_that_depend_on_torch_exist() -> None:
    assert all((ROOT / path).exists() for path in TESTS)


def test_what_is_no_version_is_refused_before_anything_is_installed() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "hack.torch_versions", "newest"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "'newest' is not a version of torch, such as 2.9 or 2.9.1" in run.stderr
