"""The docs' table of elasticrun's own flags is the one that their declarations give."""

from __future__ import annotations

from pathlib import Path

import pytest
from elasticjob_runtime.cli.own_flags import OWN_FLAGS

from hack.checks import flags

ROOT = Path(__file__).parents[4]


def test_the_docs_have_a_row_for_every_flag() -> None:
    page = (ROOT / flags.PAGE).read_text(encoding="utf-8")
    assert flags.outdated(flags.PAGE, page) == []
    for flag in OWN_FLAGS:
        assert f"| `{flag.name}" in page


def test_a_table_that_differs_from_the_declarations_is_reported() -> None:
    page = flags.with_reference(f"# elasticrun\n\n{flags.BEGIN}{flags.END}")
    (problem,) = flags.outdated(flags.PAGE, page.replace("--debug", "--verbose"))
    assert (problem.line, "make generate" in problem.message) == (3, True)
    assert flags.outdated("docs/other.md", "no table here") == []


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no lines"):
        flags.with_reference("# elasticrun\n")
