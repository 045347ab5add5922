"""Tests that pages name as `tests/path.py::test_name`: each must exist and run in `make test`, and each line of the
threat model names one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hack.checks.pages import Problem

THREAT_MODEL = "docs/explanation/threat-model.md"
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NOT_STOPPED = "**not stopped**"


def missing_tests(page: str, text: str, files: Mapping[str, str]) -> Iterator[Problem]:
    """`files`: the text of every file by its path."""
    for number, line in enumerate(text.splitlines(), 1):
        for path, name in NAMED_TEST.findall(line):
            if path not in files:
                yield Problem(page, number, f"{path} is not there")
            elif not re.search(rf"^\s*(?:async )?def {name}\(", files[path], re.MULTILINE):
                yield Problem(page, number, f"{path} has no {name}")
            elif re.search(rf"^@pytest\.mark\.nightly\n(?:@.*\n)*(?:async )?def {name}\(", files[path], re.MULTILINE):
                yield Problem(page, number, f"{name} runs only in `make nightly`: name one that runs each time")


def unproved(page: str, text: str) -> Iterator[Problem]:
    """Rows of the threat model that neither name a test nor say that nothing stops the attack."""
    if page != THREAT_MODEL:
        return
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("| ") or len(cells) != 3 or cells[0] == "attack":
            continue
        if NOT_STOPPED not in cells[1] and not NAMED_TEST.search(cells[2]):
            yield Problem(page, number, f"names no test, and does not say that it is {NOT_STOPPED}")
