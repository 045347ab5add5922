"""A command of the client that the docs show exists, with its flags."""

from __future__ import annotations

import pytest

from hack.checks import client


@pytest.mark.parametrize(
    "command",
    [
        "elasticjob submit bert --image IMG --workers 2:4 -- python train.py --lr 0.1",
        "elasticjob get bert -o yaml",
        "kubectl elasticjob logs bert --follow",
        "elasticjob --version",
        "elasticjob list --help",
    ],
)
def test_commands_that_the_client_has_are_accepted(command: str) -> None:
    assert client.wrong_commands("docs/a.md", f"Text `{command}`.") == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("elasticjob sumbit bert", "elasticjob has no command sumbit"),
        ("elasticjob submit bert --imag IMG -- train --lr 1", "elasticjob submit has no flag --imag"),
        ("kubectl elasticjob scale bert --size=3", "elasticjob scale has no flag --size"),
        ("elasticjob --verson", "elasticjob has no flag --verson"),
    ],
)
def test_commands_that_the_client_does_not_have_are_reported(command: str, message: str) -> None:
    (problem,) = client.wrong_commands("docs/a.md", f"# Title\n\n    {command}\n")
    assert (problem.message, problem.line) == (message, 3)
