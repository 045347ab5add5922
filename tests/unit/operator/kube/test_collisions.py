"""A name in use: an earlier job of that name will release it soon; for any other object, someone must act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from elasticjob_operator.kube.client import ConflictError
from elasticjob_operator.kube.writer import Writer
from elasticjob_operator.planning import CreateObject
from elasticjob_operator.state import Kind

from tests.unit.operator.builders import make_job


class Server:
    """Everything exists already, with these labels."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels

    async def request(self, method: str, _: str, **__: Any) -> dict[str, Any]:
        if method == "POST":
            raise ConflictError(409, "AlreadyExists", "exists")
        return {"metadata": {"name": "digits", "labels": self._labels, "ownerReferences": [{"uid": "another"}]}}


async def no_certificates(_: Sequence[str]) -> dict[str, str]:
    raise AssertionError("not asked for")


@pytest.mark.parametrize(
    ("labels", "rejection"),
    [
        ({"elasticjob.dev/job-name": "digits"}, ""),
        (
            {"elasticjob.dev/job-name": "other"},
            "Service digits exists and belongs to ElasticJob other: delete it, or give this job another name",
        ),
        ({}, "Service digits exists and does not belong to this job: delete it, or give this job another name"),
    ],
)
async def test_a_name_conflict_names_the_other_job(labels: dict[str, str], rejection: str) -> None:
    writer = Writer(Server(labels), lambda *_: None, no_certificates, None)  # type: ignore[arg-type]
    action = CreateObject(kind=Kind.SERVICE, body={"metadata": {"name": "digits"}}, reason="test")
    assert (await writer.apply(make_job(), [action])).rejection == rejection
