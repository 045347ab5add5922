"""The command line as a whole: help, version, wrong commands."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import yaml
from elasticjob.cli import options
from elasticjob.cli.app import run
from elasticjob.cli.output import progress, say, to_json, to_yaml, use_color
from elasticjob.decisions.waiting import worth_a_line
from elasticjob.errors import Exit


@pytest.mark.parametrize(("flag", "shown"), [("--version", "elasticjob "), ("--help", "Usage: elasticjob")])
def test_version_and_help_are_answers(flag: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([flag]) == Exit.OK
    assert capsys.readouterr().out.strip().startswith(shown)


@pytest.mark.parametrize(
    ("words", "namespace"),
    [
        (["-n", "one", "list"], "one"),
        (["list", "-n", "two"], "two"),
        (["-n", "one", "list", "-n", "two"], "two"),
        (["list"], None),
    ],
)
def test_global_flags_stand_before_or_after_the_command(
    words: list[str], namespace: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/missing/config")
    assert run(words) != Exit.OK
    assert options.namespace() == namespace


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "colored"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (Terminal(), {"FORCE_COLOR": "0"}, False),
    ],
)
def test_colors_are_for_terminals_that_want_them(
    stream: io.StringIO, environment: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert use_color(stream) is colored


def test_characters_that_the_terminal_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    say("✗ 训练")
    assert written.getvalue() == b"? ??\n"


HOSTILE = "a\x1b]0;title\x07b\x9b2Jc\u202ed\x1b[2Je\x1b[31mf"


@pytest.mark.parametrize(("terminal", "shown"), [(False, "abcdef"), (True, "abcde\x1b[31mf")])
def test_what_the_cluster_says_cannot_change_the_terminal(
    terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    out, err = (Terminal(), io.StringIO()) if terminal else (io.StringIO(), io.StringIO())
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    say(HOSTILE)
    with progress("Waiting") as report:
        report(HOSTILE)
    assert out.getvalue() == f"{shown}\n"
    assert err.getvalue() == "Waiting: abcdef\n"


def test_documents_keep_hidden_characters_as_escapes() -> None:
    document = {"message": "a\x9b\u202eb"}
    for text, read in ((to_json(document), json.loads), (to_yaml(document), yaml.safe_load)):
        assert text.isascii()
        assert read(text) == document


def test_waiting_takes_few_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("Waiting for bert") as report:
        for step in range(1000):
            report(f"training with 4 processes in round 1, step {step}")
    assert stderr.getvalue() == "Waiting for bert: training with 4 processes in round 1, step 0\n"


@pytest.mark.parametrize(
    ("text", "last", "since", "said"),
    [
        ("step 1", "", 0, True),
        ("step 1", "step 1", 1000, False),
        ("step 2", "step 1", 200, False),
        ("step 2", "step 1", 300, True),
        ("suspended", "step 1", 5, False),
        ("suspended", "step 1", 10, True),
    ],
)
def test_something_else_is_said_sooner_than_other_numbers(text: str, last: str, since: float, said: bool) -> None:
    assert worth_a_line(text, last, since) is said


def test_the_package_has_what_it_says() -> None:
    import elasticjob

    assert {"ElasticJobClient", "train"} <= set(dir(elasticjob))
    assert all(getattr(elasticjob, name) for name in elasticjob.__all__)
    with pytest.raises(AttributeError):
        _ = elasticjob.nothing


SLOW = {"elasticjob_api", "kubernetes", "urllib3", "resvg_py", "rich.console", "yaml"}
HELP = "from elasticjob.cli.app import run; run({})"
LISTS = "cli.app", "cli.output", "sdk.client", "sdk.watch", "views.jobs", "decisions.changes"


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        *((HELP.format(words), SLOW) for words in (["--help"], ["list", "--help"], ["submit", "--help"])),
        (f"import {', '.join(f'elasticjob.{name}' for name in LISTS)}", {"elasticjob_api"}),
    ],
    ids=["help", "help of list", "help of submit", "lists and watches"],
)
def test_commands_start_without_what_is_slow(code: str, slow: set[str]) -> None:
    """Importing any of these takes longer than the rest together; the typed models a third of a second of CPU."""
    code = f"import sys; {code}; print('loaded:', sorted({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
