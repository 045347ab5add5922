"""Requests about ElasticJobs themselves."""

from __future__ import annotations

from elasticjob_operator import names
from elasticjob_operator.cluster.api import JSON_PATCH, Api, NotFoundError, RefusedError
from elasticjob_operator.cluster.resources import JOBS
from elasticjob_operator.cluster.store import Json, Name, name_of, version_of

_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 500


async def list_job_versions(api: Api, namespace: str = "") -> dict[Name, tuple[str, int]]:
    """uid and resourceVersion of every job. Names only: nothing of their specs travels. Raises ApiError or ConnectionError."""
    found: dict[Name, tuple[str, int]] = {}
    query = {"limit": str(_PAGE)}
    while True:
        page = await api.request("GET", JOBS.path(namespace), query=query, accept=_METADATA_ONLY)
        found |= {name_of(each): (each["metadata"]["uid"], version_of(each)) for each in page.get("items") or []}
        token = page.get("metadata", {}).get("continue")
        if not token:
            return found
        query = {"limit": str(_PAGE), "continue": token}


async def read_job(api: Api, name: Name) -> Json:
    """Raises ApiError (NotFoundError) or ConnectionError."""
    return await api.request("GET", JOBS.path(*name))


async def write_status(api: Api, name: Name, uid: str, status: Json) -> Json | None:
    """The job after the write; None: that job (by uid) is gone. Raises ApiError or ConnectionError.

    A JSON patch, because it can test the uid: a merge patch with another uid in it is carried out all the same (Kubernetes 1.36), and the
    old job's end would be written to a new one of its name. It replaces the status whole, whatever the resourceVersion: nobody else
    writes it.
    """
    patch = [{"op": "test", "path": "/metadata/uid", "value": uid}, {"op": "add", "path": "/status", "value": status}]
    path = JOBS.path(*name, "status")
    try:
        return await api.request("PATCH", path, query={"fieldManager": names.FIELD_MANAGER}, body=patch, content_type=JSON_PATCH)
    except NotFoundError:
        return None
    except RefusedError as error:
        # A failed test and an invalid status are both 422.
        if error.status == 422 and not await _is_there(api, name, uid):
            return None
        raise


async def _is_there(api: Api, name: Name, uid: str) -> bool:
    try:
        return bool((await read_job(api, name))["metadata"]["uid"] == uid)
    except NotFoundError:
        return False
