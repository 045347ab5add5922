"""Code blocks that readers cannot use as written are reported, unless the page says why."""

from __future__ import annotations

import pytest

from hack.checks import examples


def block(language: str, text: str, above: str = "") -> str:
    return f"# Title\n\n{above}\n```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("sh", "kubectl get ej -o wide   # all of them\nhelm upgrade a b \\\n  --set c=d"),
        ("sh", "A=1 make demo && kubectl logs x > file"),
        ("python", "import torch\nfrom elasticjob_runtime.training import load_checkpoint\n...\n"),
        ("python", "import lightning"),
        ("python", "from elasticjob_runtime.training.integrations.transformers import ElasticCallback"),
        ("python", "from elasticjob_runtime.training.integrations.lightning import ElasticStrategy"),
        ("text", "anything that is output"),
        ("yaml", "a: 1"),
    ],
)
def test_code_that_can_be_used_is_accepted(language: str, text: str) -> None:
    assert examples.problems("docs/a.md", block(language, text)) == []


@pytest.mark.parametrize(
    ("language", "text", "message"),
    [
        ("sh", "kubctl get ej", "kubctl is not a known program"),
        ("sh", "make demo | teee log", "teee is not a known program"),
        ("sh", "kubectl get 'ej", "the shell cannot read this"),
        ("python", "def f(:\n", "Python cannot read this: invalid syntax"),
        ("python", "from elasticjob_runtime.training import save", "elasticjob_runtime.training has no save"),
        (
            "python",
            "from elasticjob_runtime.training.integrations.transformers import Callback",
            "elasticjob_runtime.training.integrations.transformers has no Callback",
        ),
        ("python", "import elasticjob_runtime.trainer", "there is no module elasticjob_runtime.trainer"),
        ("python", "import pandas_of_others", "no module pandas_of_others is installed"),
        ("mermaid", "a --> b", "a code block is mermaid: use one of"),
        ("", "a", "a code block is of no language: use one of"),
    ],
)
def test_code_that_cannot_be_used_is_reported(language: str, text: str, message: str) -> None:
    (problem,) = examples.problems("docs/a.md", block(language, text))
    assert message in problem.message
    assert problem.line == 5


def test_a_block_whose_page_says_why_it_is_not_run_is_left_alone() -> None:
    mark = "<!-- not run: needs Docker -->"
    assert examples.problems("docs/a.md", block("sh", "dokcer build .", mark)) == []
    assert examples.problems("docs/a.md", block("sh", "dokcer build .", "<!-- not run: -->")) != []
    assert examples.problems("docs/a.md", mark + block("sh", "dokcer build .", "Text.")) != []


def test_commands_are_the_words_of_each_command() -> None:
    script = 'A=1 kubectl get ej | grep x > file\nmake demo && make test\nkubectl patch ej a -p \'{"a": "; b"}\''
    assert examples.commands(script) == [
        ["kubectl", "get", "ej"],
        ["grep", "x"],
        ["make", "demo"],
        ["make", "test"],
        ["kubectl", "patch", "ej", "a", "-p", '{"a": "; b"}'],
    ]
