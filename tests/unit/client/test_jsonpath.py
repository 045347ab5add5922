"""-o jsonpath, as scripts use it."""

from __future__ import annotations

import pytest
from elasticjob.errors import UsageError
from elasticjob.views.jsonpath import jsonpath

JOB = {
    "metadata": {"name": "bert", "labels": {"a.b/c": "x"}},
    "status": {"round": 3, "conditions": [{"type": "Running"}, {"type": "Accepted"}]},
}


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{.metadata.name}", "bert"),
        (".metadata.name", "bert"),
        ("metadata.name", "bert"),
        ("{$.status.round}", "3"),
        ("{.status.conditions[*].type}", "Running Accepted"),
        ("{.status.conditions[1].type}", "Accepted"),
        ("{.status.conditions[7].type}", ""),
        ("{.status.none}", ""),
        (r"{.metadata.labels.a\.b/c}", "x"),
        ("{.metadata.labels['a.b/c']}", "x"),
        ('{.metadata.name}{"\\n"}round {.status.round}', "bert\nround 3"),
        ("{.metadata.labels}", '{"a.b/c": "x"}'),
    ],
)
def test_fields_are_printed_as_kubectl_prints_them(template: str, shown: str) -> None:
    assert jsonpath(JOB, template) == shown


@pytest.mark.parametrize("template", ["{range .items[*]}", "{.items[?(@.a==1)]}", '{"open}'])
def test_what_is_not_understood_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        jsonpath(JOB, template)
