"""Exit codes are documented, and errors become them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elasticjob import errors
from elasticjob.cli.app import run
from elasticjob.errors import ElasticJobError, Exit

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "command-line.md"


def test_every_exit_code_is_documented() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}
    assert documented == {code.value for code in Exit}


def test_every_error_says_which_code_it_is() -> None:
    kinds = [var for var in vars(errors).values() if isinstance(var, type) and issubclass(var, ElasticJobError)]
    assert {kind.code for kind in kinds} | {Exit.OK, Exit.INCOMPLETE, Exit.INTERRUPTED} == set(Exit)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lst"], "Did you mean 'list'?"),
        (["submit", "a", "--nnodes", "2"], "Did you mean --workers MIN:MAX?"),
        (["list", "--namspace", "a"], "Did you mean --all-namespaces or --namespace?"),
        (["get", "-o", "table"], "Invalid value for '--output'"),
        (["logs"], "elasticjob logs -l team=nlp"),
        (["logs", "a", "-l", "team=nlp"], "logs needs either the name of a job or --selector."),
        (["get", "a", "-l", "team=nlp"], "cannot be used together"),
        (["scale", "a"], "scale needs the number of worker pods."),
        (["scale", "a", "2", "--replicas", "3"], "scale needs the number of worker pods."),
        (["delete"], "delete needs the names of jobs, --all or --filename."),
        (["delete", ""], "cannot be the name of a job"),
        (["wait", "a", "--for", "condition=Great"], "write one of Started"),
        (["wait", "a", "--for", ""], "write one of Started"),
        (["wait", "a", "--for", "condition="], "write one of Started"),
        (["submit", "-f", "job.yaml", "--max-replicas", "4"], "--max-replicas and --filename cannot be used together"),
        (["submit", "-f", "job.yaml", "--gpu-resource", "x"], "--gpu-resource and --filename cannot be used together"),
        (["convert", "-f", "job.yaml", "-o", "json", "--comments"], "JSON has no comments"),
        (["plot", "a", "--file", "a.svg", "-o", "png"], "name two formats"),
        (["scale", "a", "many"], "Invalid value for 'WORKERS'"),
        (["submit", "--image", "train:1", "--", "python", "train.py"], "The job needs a name"),
        (["submit", "-f", "job.yaml", "--cpu", "4"], "--cpu and --filename cannot be used together"),
        (["submit", "a", "-f", "job.yaml"], "NAME and --filename cannot be used together"),
        (["submit"], "elasticjob submit bert --image IMAGE"),
        (["logs", "a", "--rank", "1", "--all"], "Only one of --rank"),
        (["stacks", "a", "--replica", "1", "--worker", "0"], "--replica goes with --rank only"),
        (["submit", "a", "--dry-run", "--", "python"], "The job needs an image"),
        (["submit", "a", "--script", "train.py", "--dry-run", "client"], "write --dry-run=client"),
    ],
)
def test_wrong_arguments_are_answered_with_what_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == Exit.USAGE
    caught = capsys.readouterr()
    assert said in caught.err
    assert "Traceback" not in caught.err
    assert caught.out == ""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--dry-run"], "name: bert"),
        (["--dry-run=client"], "name: bert"),
        (["--dry-run", "-o", "json"], '"name": "bert"'),
        (["--dry-run=client", "-o", "name"], "elasticjob.elasticjob.dev/bert"),
        (["--dry-run=client", "-o", "jsonpath={.metadata.name}"], "bert\n"),
    ],
)
def test_a_dry_run_of_the_client_asks_no_cluster(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nothing")
    assert run(["submit", "bert", "--image", "train:1", *words, "--", "python", "train.py"]) == Exit.OK
    assert shown in capsys.readouterr().out


def test_a_digit_that_is_no_number_is_left_to_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["submit", "a", "--image", "train:1", "--procs-per-worker", "²", "--dry-run", "--", "python"]
    assert run(words) == Exit.ERROR
    assert "spec.workers.procsPerWorker" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--show-completion", "--install-completion"])
def test_a_plug_in_says_how_it_is_completed_instead_of_breaking_the_shell(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([flag], "kubectl elasticjob") == Exit.USAGE
    caught = capsys.readouterr()
    assert caught.out == "", "a shell evaluates it"
    assert "elasticjob --install-completion" in caught.err
    run(["submit", "bert", "--image", "a", "--dry-run", "--", "prog", flag], "kubectl elasticjob")
    assert flag in capsys.readouterr().out, "a flag of the job's own program"
