"""The command line as a whole: help, version, wrong commands."""

from __future__ import annotations

import pytest
from elasticjob.cli.app import run
from elasticjob.errors import Exit


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == Exit.OK
    assert capsys.readouterr().out.startswith("elasticjob ")


def test_help_exits_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == Exit.OK
    assert "Usage: elasticjob" in capsys.readouterr().out
