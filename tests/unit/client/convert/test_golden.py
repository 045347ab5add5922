"""Jobs of other operators become these ElasticJobs, with these reports."""

from __future__ import annotations

import pytest
from elasticjob.convert import Converted, Outcome
from elasticjob_runtime.cli.arguments import build_parser

from tests.unit.client.convert.goldens import CASES, converted, expected


@pytest.mark.parametrize("case", CASES)
def test_a_job_becomes_the_expected_elasticjob_and_report(case: str) -> None:
    for path, text in expected(case).items():
        assert path.read_text(encoding="utf-8") == text, "meant? run `python -m tests.unit.client.convert.goldens`"


def test_the_cases_cover_every_kind() -> None:
    assert {case.partition("-")[0] for case in CASES} == {"dlrover", "pytorchjob", "torchelastic", "trainjob"}


@pytest.mark.parametrize("case", CASES)
def test_every_report_says_why(case: str) -> None:
    jobs: list[Converted] = converted(case)
    for note in (note for job in jobs for note in job.notes):
        assert note.why or note.outcome is Outcome.CARRIED, note
        assert not note.why.endswith("."), note
        assert not note.instead.endswith("."), note


@pytest.mark.parametrize("case", CASES)
def test_elasticrun_takes_the_words_that_follow_it(case: str) -> None:
    for job in (item.manifest for item in converted(case) if item.manifest["kind"] == "ElasticJob"):
        for container in job["spec"]["workers"]["template"]["spec"]["containers"]:
            words = [*container.get("command", []), *container.get("args", [])]
            if words[:1] == ["elasticrun"]:
                options = build_parser().parse_args(words[1:])
                assert options.training_script in ("train.py", "/workspace/train.py", "speech.train", "tune.py")
