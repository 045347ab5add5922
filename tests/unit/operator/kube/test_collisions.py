"""A name in use: objects of a deleted job of that name are told by the plan, all others by the server's conflict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from elasticjob_operator.kube.apply_result import ApplyResult
from elasticjob_operator.kube.client import ConflictError
from elasticjob_operator.kube.writer import Writer
from elasticjob_operator.planning import CreateObject
from elasticjob_operator.state import Kind

from tests.unit.operator.builders import make_job


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
    ("labels", "whose"),
    [
        ({"elasticjob.dev/job-name": "other"}, "belongs to ElasticJob other"),
        ({}, "does not belong to this job"),
    ],
    ids=["of another job", "of no job"],
)
async def test_a_name_conflict_names_the_object_and_what_to_do(labels: dict[str, str], whose: str) -> None:
    result, known = await conflict(labels)
    assert result.rejection == f"Service digits exists and {whose}: delete it, or give this job another name"
    assert not known


async def test_an_object_of_a_deleted_job_is_known_to_the_next_plan() -> None:
    """Which names all of them."""
    result, known = await conflict({"elasticjob.dev/job-name": "digits"})
    assert not result.rejection
    assert [item["metadata"]["name"] for item in known] == ["digits"]


async def conflict(labels: dict[str, str]) -> tuple[ApplyResult, list[Any]]:
    """The result, and the objects that were passed to the informers."""
    known: list[Any] = []
    writer = Writer(
        Server({"labels": labels, "ownerReferences": [{"uid": "another"}]}),  # type: ignore[arg-type]
        lambda _, body: known.append(body),
        no_certificates,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
    )
    action = CreateObject(kind=Kind.SERVICE, body={"metadata": {"name": "digits"}}, reason="test")
    return await writer.apply(make_job(), [action]), known
