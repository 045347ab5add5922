"""Lists of jobs page by page, with the progress that is beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from elasticjob.cluster import watching
from elasticjob.cluster.objects import Cluster
from elasticjob.errors import ForbiddenError

TITLES = ("Workers", "World", "Restarts", "Step", "Status", "Round", "Step seen")
EARLIER, THEN, LATER = (f"2026-01-01T12:00:{second}Z" for second in ("00", "20", "40"))


class Api:
    """An API server with these jobs and progresses, by `namespace/name`; each list in the order of its keys."""

    def __init__(
        self, jobs: list[str], beside: list[str], *, forbidden: bool = False, seen: str | None = EARLIER
    ) -> None:
        """`seen`: when the operator first saw the steps in the statuses; those beside are of THEN."""
        self.target = SimpleNamespace(namespace="ml")
        self._lists = {"elasticjobs": sorted(jobs), "elasticjobprogresses": sorted(beside)}
        self._forbidden = forbidden
        self._seen = seen
        self.asked: list[tuple[str, int]] = []
        """Kinds and limits."""

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        kind = path.rpartition("/")[2]
        self.asked.append((kind, query["limit"]))
        if self._forbidden and kind == "elasticjobprogresses":
            raise ForbiddenError("no right to list elasticjobprogresses")
        start, end = int(query["continue"] or 0), int(query["continue"] or 0) + query["limit"]
        keys = self._lists[kind][start:end]
        metadata = {"continue": str(end)} if end < len(self._lists[kind]) else {}
        if kind == "elasticjobprogresses":
            return {"metadata": metadata, "items": [_progress(key) for key in keys]}
        cells = ["2/2", 2, 0, 10, "Running", 1, self._seen]
        rows = [{"object": {"metadata": _metadata(key)}, "cells": cells} for key in keys]
        return {"metadata": metadata, "columnDefinitions": [{"name": title} for title in TITLES], "rows": rows}


def _metadata(key: str) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    return {"namespace": namespace, "name": name, "uid": f"uid of {key}"}


def _progress(key: str) -> dict[str, Any]:
    metadata = {**_metadata(key), "uid": "its own", "ownerReferences": [{"uid": f"uid of {key}"}]}
    return {"metadata": metadata, "progress": {"step": 20, "observedAt": THEN}}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FIRST_PAGE", 2)
    monkeypatch.setattr(watching, "PAGE", 3)


FEW = ["a-b/x", "a/x", "a/y"]
"""In the order of the API server's keys, which is not that of (namespace, name)."""
MANY = [f"ml/job-{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("jobs", "beside", "pages"),
    [
        ([], [], [0]),
        (FEW, [], [2, 1]),
        (FEW, FEW, [2, 1]),
        (MANY, MANY, [2, 3, 3]),
        (MANY, MANY[6:], [2, 3, 3]),
        (MANY[6:], MANY, [2]),
        (MANY, ["ml/job-0", "ml/job-00", "zz/of-a-deleted-job"], [2, 3, 3]),
    ],
    ids=["no job", "none beside", "another order", "several pages", "the last", "a selection", "others"],
)
def test_each_job_gets_the_progress_beside_it(jobs: list[str], beside: list[str], pages: list[int]) -> None:
    found = [*Cluster(Api(jobs, beside)).listed("")]  # type: ignore[arg-type]
    assert [len(page) for page in found] == pages
    steps = {
        f"{job['metadata']['namespace']}/{job['metadata']['name']}": job["status"]["progress"]["step"]
        for page in found
        for job in page
    }
    assert steps == {job: 20 if job in beside else 10 for job in jobs}


def test_the_first_page_is_there_before_the_second_is_read() -> None:
    api = Api(MANY, MANY)
    next(iter(Cluster(api).listed("")))  # type: ignore[arg-type]
    assert api.asked == [("elasticjobs", 2), ("elasticjobprogresses", 2)]


def test_without_the_right_to_read_progress_jobs_are_listed_as_they_are() -> None:
    api = Api(MANY, MANY, forbidden=True)
    found = [job for page in Cluster(api).listed("") for job in page]  # type: ignore[arg-type]
    assert {job["status"]["progress"]["step"] for job in found} == {10}
    assert sum(kind == "elasticjobprogresses" for kind, _ in api.asked) == 1, "asked once"


@pytest.mark.parametrize(("seen", "step"), [(EARLIER, 20), (LATER, 10), (None, 20)])
def test_the_newer_step_is_listed(seen: str | None, step: int) -> None:
    ((job,),) = Cluster(Api(["ml/a"], ["ml/a"], seen=seen)).listed("")  # type: ignore[arg-type]
    assert job["status"]["progress"]["step"] == step
