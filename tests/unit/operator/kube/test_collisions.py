"""A name in use: objects of a deleted job of that name are about to be deleted; for all others, someone must act."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from elasticjob_operator.kube.client import ConflictError
from elasticjob_operator.kube.writer import Writer
from elasticjob_operator.planning import CreateObject
from elasticjob_operator.state import Kind

from tests.unit.operator.builders import make_job

PREDECESSOR = {"elasticjob.dev/job-name": "digits"}
LEFT_BEHIND = "was left behind by a deleted ElasticJob of this name"


class Server:
    """Everything exists already."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata

    async def request(self, method: str, _: str, **__: Any) -> dict[str, Any]:
        if method == "POST":
            raise ConflictError(409, "AlreadyExists", "exists")
        return {"metadata": {"name": "digits", **self._metadata}}


async def no_certificates(_: Sequence[str]) -> dict[str, str]:
    raise AssertionError("not asked for")


@pytest.mark.parametrize(
    ("labels", "owned", "age", "whose"),
    [
        (PREDECESSOR, True, 5, ""),
        (PREDECESSOR, True, 60, LEFT_BEHIND),
        (PREDECESSOR, False, 5, LEFT_BEHIND),
        ({"elasticjob.dev/job-name": "other"}, True, 5, "belongs to ElasticJob other"),
        ({}, True, 5, "does not belong to this job"),
    ],
    ids=["garbage, soon deleted", "garbage, not deleted", "an orphan", "of another job", "of no job"],
)
async def test_a_name_conflict_names_the_object_and_what_to_do(
    labels: dict[str, str], owned: bool, age: float, whose: str
) -> None:
    writer = Writer(
        Server({"labels": labels, "ownerReferences": [{"uid": "another"}] if owned else []}),  # type: ignore[arg-type]
        lambda *_: None,
        no_certificates,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
    )
    action = CreateObject(kind=Kind.SERVICE, body={"metadata": {"name": "digits"}}, reason="test")
    created = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age)
    job = make_job()
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"creation_timestamp": created})})
    expected = f"Service digits exists and {whose}: delete it, or give this job another name" if whose else ""
    assert (await writer.apply(job, [action])).rejection == expected
