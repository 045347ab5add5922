"""The progress of a job, which is in its status, or beside the job in an ElasticJobProgress if that is newer. Pure."""

from __future__ import annotations

from elasticjob.state.values import Json, object_at

_PARTS = ("progress", "optimizerSteps")


def with_progress(job: Json, beside: Json | None) -> Json:
    """`job` with the newest progress in its status. `beside`: the ElasticJobProgress of that name, if there is one."""
    if beside is None or not _belongs_to(beside, job):
        return job
    status = object_at(job, "status")
    newer = {name: beside[name] for name in _PARTS if beside.get(name) and _time(beside, name) > _time(status, name)}
    return {**job, "status": {**status, **newer}} if newer else job


def _belongs_to(beside: Json, job: Json) -> bool:
    owners = object_at(beside, "metadata").get("ownerReferences") or ()
    return any(owner.get("uid") == object_at(job, "metadata").get("uid") for owner in owners)


def _time(within: Json, name: str) -> tuple[str, str]:
    found = object_at(within, name)
    return str(found.get("observedAt") or ""), str(found.get("updatedAt") or "")
