"""Requests about ElasticJobs themselves, and about the objects with their progress."""

from __future__ import annotations

import dataclasses

from elasticjob_operator import names
from elasticjob_operator.kube.api_resources import JOBS, PROGRESS
from elasticjob_operator.kube.cache import Json, name_of, version_of
from elasticjob_operator.kube.client import (
    JSON_PATCH,
    MERGE_PATCH,
    ConflictError,
    KubeClient,
    NotFoundError,
    RejectedError,
)
from elasticjob_operator.names import NamespacedName

_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 500


async def list_job_versions(api: KubeClient, namespace: str = "") -> dict[NamespacedName, tuple[str, int]]:
    """UID and resourceVersion of every job, requested as metadata only. Raises ApiError or ConnectionError."""
    found: dict[NamespacedName, tuple[str, int]] = {}
    async for page in api.pages(JOBS.path(namespace), {}, size=_PAGE, accept=_METADATA_ONLY):
        found |= {name_of(item): (item["metadata"]["uid"], version_of(item)) for item in page.get("items") or []}
        del page  # not two at once
    return found


async def read_job(api: KubeClient, name: NamespacedName) -> Json:
    """Raises ApiError (NotFoundError) or ConnectionError."""
    return await api.request("GET", JOBS.path(*name))


@dataclasses.dataclass(frozen=True, slots=True)
class StatusWrite:
    """The result of a status write."""

    job: Json | None
    """The current job; None: it was deleted."""
    written: bool
    """False: the job has changed and must be reconciled again."""


async def write_status(api: KubeClient, name: NamespacedName, uid: str, version: str, status: Json) -> StatusWrite:
    """Replaces the whole status, if the job still has that UID and resourceVersion. Raises ApiError or
    ConnectionError.

    A JSON patch, because it can test: the API server ignores the UID in a merge patch (Kubernetes 1.36), and would
    write the old job's end to a new job of the same name. The version rejects delayed writes, for example of a former
    leader about a job that has finished since. After a conflict the newer job is read, so that the retry need not wait
    for the watch.
    """
    tests = [
        {"op": "test", "path": f"/metadata/{field}", "value": value}
        for field, value in (("uid", uid), ("resourceVersion", version))
    ]
    patch = [*tests, {"op": "add", "path": "/status", "value": status}]
    path = JOBS.path(*name, "status")
    try:
        body = await api.request(
            "PATCH", path, query={"fieldManager": names.FIELD_MANAGER}, body=patch, content_type=JSON_PATCH
        )
    except NotFoundError:
        return StatusWrite(None, written=False)
    except (ConflictError, RejectedError) as error:
        # A failed test and an invalid status are both 422.
        if error.status not in (409, 422):
            raise
        known = await _read_same(api, name, uid)
        if known is not None and error.status == 422 and version_of(known) == int(version or 0):
            raise
        return StatusWrite(known, written=False)
    return StatusWrite(body, written=True)


async def _read_same(api: KubeClient, name: NamespacedName, uid: str) -> Json | None:
    """None: the job of that UID was deleted."""
    try:
        found = await read_job(api, name)
    except NotFoundError:
        return None
    return found if found["metadata"]["uid"] == uid else None


async def write_progress(api: KubeClient, body: Json) -> None:
    """Writes the ElasticJobProgress, and creates it if there is none. Raises ApiError or ConnectionError."""
    namespace, name = name_of(body)
    query = {"fieldManager": names.FIELD_MANAGER}
    try:
        await api.request("PATCH", PROGRESS.path(namespace, name), query=query, body=body, content_type=MERGE_PATCH)
    except NotFoundError:
        await api.request("POST", PROGRESS.path(namespace), query=query, body=body)
