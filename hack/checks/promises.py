"""Tests that pages name as `tests/path.py::test_name`: each must exist and run in `make test`. Each line of the threat
model and of the page of promises names one, and the latter has a line for each condition's reason and each fault."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from elasticjob_api import Reason

from hack.chaos.faults import FAULTS
from hack.checks.pages import Problem

THREAT_MODEL = "docs/explanation/threat-model.md"
PROMISES = "docs/promises.md"
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NIGHTLY = r"pytest\.mark\.nightly"
NOT_STOPPED = "**not stopped**"


def missing_tests(page: str, text: str, files: Mapping[str, str]) -> Iterator[Problem]:
    """`files`: the text of every file by its path."""
    for number, line in enumerate(text.splitlines(), 1):
        for path, name in NAMED_TEST.findall(line):
            if path not in files:
                yield Problem(page, number, f"{path} is not there")
            elif not re.search(rf"^\s*(?:async )?def {name}\(", files[path], re.MULTILINE):
                yield Problem(page, number, f"{path} has no {name}")
            elif _is_nightly(name, files[path]):
                yield Problem(page, number, f"{name} runs only in `make nightly`: name one that runs each time")


def _is_nightly(name: str, source: str) -> bool:
    """By a mark of its own or of its file."""
    own = rf"^@{NIGHTLY}\n(?:@.*\n)*(?:async )?def {name}\("
    return re.search(rf"{own}|^pytestmark = (?:\[[^\]]*)?{NIGHTLY}", source, re.MULTILINE) is not None


def unproved(page: str, text: str) -> Iterator[Problem]:
    """Rows that name no test, unless they say that nothing stops the attack; reasons and faults without a row."""
    if page not in (THREAT_MODEL, PROMISES):
        return
    listed, header = set[str](), ""
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = ""
            continue
        if not header or line.startswith("|-"):
            header = header or cells[0]
            continue
        if page == THREAT_MODEL and NOT_STOPPED not in cells[1] and not NAMED_TEST.search(cells[2]):
            yield Problem(page, number, f"names no test, and does not say that it is {NOT_STOPPED}")
        if page == PROMISES and not NAMED_TEST.search(cells[1]):
            yield Problem(page, number, "names no test")
        if header in ("reason", "fault"):
            listed.update(re.findall(r"`([\w-]+)`", cells[0]))
    wanted = (*Reason, *(fault.name for fault in FAULTS)) if page == PROMISES else ()
    yield from (Problem(page, 1, f"no line names the test of {name}") for name in wanted if name not in listed)
    yield from (Problem(page, 1, f"{name} is no reason and no fault") for name in sorted(listed.difference(wanted)))
