"""`elasticjob convert` as people run it: files, streams, exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml
from elasticjob.cli.app import run
from elasticjob.errors import Exit

from tests.unit.client.convert.goldens import GOLDEN

INPUT = GOLDEN / "pytorchjob-elastic" / "input.yaml"
EXPECTED = (GOLDEN / "pytorchjob-elastic" / "elasticjob.yaml").read_text(encoding="utf-8")
REPORT = (GOLDEN / "pytorchjob-elastic" / "report.txt").read_text(encoding="utf-8")


def convert(*words: str) -> int:
    return run(["convert", *words])


def test_the_manifest_goes_to_stdout_and_the_report_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("-f", str(INPUT)) == Exit.OK
    assert capsys.readouterr() == (EXPECTED, REPORT)


def test_stdin_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(INPUT.read_text(encoding="utf-8")))
    assert convert("-f", "-") == Exit.OK
    assert capsys.readouterr().out == EXPECTED


def test_a_runtime_is_read_from_its_own_file(capsys: pytest.CaptureFixture[str]) -> None:
    case = GOLDEN / "trainjob-elastic"
    assert convert("-f", str(case / "input.yaml"), "--runtime", str(case / "runtime.yaml")) == Exit.OK
    assert capsys.readouterr().out == (case / "elasticjob.yaml").read_text(encoding="utf-8")


def test_several_files_become_one_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("-f", str(INPUT), "-f", str(GOLDEN / "dlrover-allreduce" / "input.yaml")) == Exit.OK
    assert len(list(yaml.safe_load_all(capsys.readouterr().out))) == 2


def test_the_manifest_is_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "job.yaml"
    assert convert("-f", str(INPUT), "--file", str(output)) == Exit.OK
    assert (output.read_text(encoding="utf-8"), capsys.readouterr().out) == (EXPECTED, "")
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_an_existing_file_is_not_replaced_unless_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "job.yaml"
    output.write_text("mine", encoding="utf-8")
    assert convert("-f", str(INPUT), "--file", str(output)) == Exit.ERROR
    assert output.read_text(encoding="utf-8") == "mine"
    assert "--force" in capsys.readouterr().err
    assert convert("-f", str(INPUT), "--file", str(output), "--force") == Exit.OK
    assert output.read_text(encoding="utf-8") == EXPECTED


def test_the_input_itself_is_not_replaced(tmp_path: Path) -> None:
    both = tmp_path / "job.yaml"
    both.write_text(INPUT.read_text(encoding="utf-8"), encoding="utf-8")
    assert convert("-f", str(both), "--file", str(both)) == Exit.ERROR
    assert both.read_text(encoding="utf-8") == INPUT.read_text(encoding="utf-8")


def test_nothing_is_written_when_the_input_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in.yaml", tmp_path / "out.yaml"
    source.write_text("a:\n  b: 1\n c: 2", encoding="utf-8")
    assert convert("-f", str(source), "--file", str(output)) == Exit.ERROR
    assert not output.exists()
    assert "in.yaml:3:2: not valid YAML" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("-f", "/nowhere.yaml"), Exit.NOT_FOUND, "There is no file /nowhere.yaml."),
        (("-f", "/"), Exit.ERROR, "Cannot read /: Is a directory."),
        (("-f", str(INPUT), "--file", "/dev/null/job.yaml"), Exit.ERROR, "Cannot write /dev/null/job.yaml"),
        (("--report", "xml", "-f", str(INPUT)), Exit.USAGE, "xml"),
        ((), Exit.USAGE, "--filename"),
    ],
)
def test_a_mistake_is_one_sentence_and_an_exit_code(
    words: tuple[str, ...], code: Exit, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(*words) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_the_report_as_json_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("-f", str(INPUT), "--report", "json") == Exit.OK
    (job,) = json.loads(capsys.readouterr().err)["objects"]
    assert (job["source"], job["result"], job["complete"]) == ("PyTorchJob/bert", "ElasticJob/bert", False)
    assert {"path": "spec.elasticPolicy.maxReplicas", "outcome": "carried"}.items() <= next(
        field for field in job["fields"] if field["path"] == "spec.elasticPolicy.maxReplicas"
    ).items()


def test_comments_in_the_manifest_leave_it_a_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("-f", str(INPUT), "--comments", "--report", "none") == Exit.OK
    out, error = capsys.readouterr()
    assert error == ""
    assert "# Not carried over:" in out
    assert yaml.safe_load(out) == yaml.safe_load(EXPECTED)


def test_scripts_can_ask_whether_something_was_lost() -> None:
    assert convert("-f", str(INPUT), "--strict") == Exit.INCOMPLETE
    assert convert("-f", str(GOLDEN / "trainjob-simple" / "input.yaml"), "--strict") == Exit.OK


def test_the_manifest_is_written_in_the_format_that_o_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("-f", str(INPUT), "-o", "json") == Exit.OK
    assert json.loads(capsys.readouterr().out)["kind"] == "ElasticJob"
