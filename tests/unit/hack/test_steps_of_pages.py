"""A tutorial says of each block what to do with it."""

from __future__ import annotations

import pytest

from hack.checks.steps import Run, Save, UnclearStepError, steps
from hack.images.recipe import ROOT

LITERAL = ["first-job", "your-image"]
"""Tutorials whose commands use the files that they save."""


@pytest.mark.parametrize("name", LITERAL)
def test_a_tutorial_says_where_each_file_is_saved_and_uses_it(name: str) -> None:
    found = steps((ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8"))
    for index, step in enumerate(found):
        if isinstance(step, Save):
            later = [each.script for each in found[index:] if isinstance(each, Run)]
            assert any(step.path in script for script in later), f"nothing uses {step.path}"


def test_blocks_are_saved_run_and_left_out_as_the_page_says() -> None:
    page = (
        "Save this as `a.yaml`:\n\n```yaml\nkind: A\n```\n\n```sh\nkubectl apply -f a.yaml\n```\n\n"
        "```text\noutput\n```\n\n<!-- not run: needs a GPU -->\n```sh\nnvidia-smi\n```\n"
    )
    assert steps(page) == [Save(4, "a.yaml", "kind: A\n"), Run(8, "kubectl apply -f a.yaml")]


def test_a_file_without_a_name_is_unclear() -> None:
    with pytest.raises(UnclearStepError, match="line 4: say above the block what to save it as"):
        steps("A claim:\n\n```yaml\nkind: A\n```\n")
