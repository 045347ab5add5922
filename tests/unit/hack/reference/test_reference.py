"""The reference has every field, reason and variable that the code has, as the code says it."""

from __future__ import annotations

import enum
from pathlib import Path

import pytest
from elasticjob_api import MESSAGES, Reason
from elasticjob_runtime.contract import Env

from hack import reference
from hack.checks import client, reasons
from hack.reference import cli, conditions, elasticjob, environment, source

ROOT = Path(__file__).parents[4]


HIDDEN_OR_COMMON = ("--namespace", "--context", "--kubeconfig", "--command")


class Example(enum.Enum):
    # First. And a remark.
    ONE = "one"
    """Its
    docstring."""
    # Second
    TWO = "two"

    __str__ = enum.Enum.__str__


def test_docstrings_and_comments_are_read_from_the_source() -> None:
    assert source.assignments(Example) == [
        source.Assignment("ONE", "Its docstring.", "First. And a remark."),
        source.Assignment("TWO", "", "Second"),
    ]


def test_the_pages_in_the_repository_are_up_to_date() -> None:
    present = {path: (ROOT / path).read_text(encoding="utf-8") for path in reference.pages()}
    assert reference.outdated(present) == []


def test_a_page_that_differs_is_reported() -> None:
    present = reference.pages() | {"docs/reference/elasticjob.md": "old"}
    assert [each.path for each in reference.outdated(present)] == ["docs/reference/elasticjob.md"]


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_row_with_its_message(reason: Reason) -> None:
    assert conditions.page().count(f"| `{reason}` | {MESSAGES[reason]}") == 1


def test_every_variable_of_the_contract_is_explained() -> None:
    page = environment.page()
    for name in Env.RESERVED:
        assert f"`{name}`" in page


def test_a_field_has_its_type_default_limits_and_errors() -> None:
    page = elasticjob.page()
    assert "| `maxRestarts` | integer<br>default `10`<br>0 to 1000000 |" in page
    assert "| `allowedReplicas` | list of integers<br>1 to 64 items<br>each 1 to 10000 |" in page
    assert "| [`workers`](#specworkers) | object<br>required |" in page
    assert "- `minReplicas`: minReplicas (…) is above maxReplicas (…): lower minReplicas or raise maxReplicas\n" in page
    assert "Can be changed only while the job is suspended: `rendezvous.backend`, " in page


def test_the_debugging_guide_explains_every_reason_that_may_need_action() -> None:
    page = (ROOT / reasons.PAGE).read_text(encoding="utf-8")
    assert reasons.unexplained(page) == []
    (problem,) = reasons.unexplained(page.replace("`Unschedulable`", "unschedulable"))
    assert "reason Unschedulable" in problem.message


def test_every_command_of_the_client_has_a_section_with_its_flags() -> None:
    page = cli.page()
    for name, flags in client.known().items():
        section = page.partition(f"\n## elasticjob {name}\n")[2].partition("\n## ")[0]
        assert section
        for flag in flags:
            if flag.startswith("--") and flag not in HIDDEN_OR_COMMON:
                assert f"`{flag}" in section
