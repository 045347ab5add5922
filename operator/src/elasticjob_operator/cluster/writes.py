"""Carrying out actions: one request each, at most `IN_FLIGHT` at once over all jobs."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Callable, Iterable
from typing import Any

from elasticjob_operator import names
from elasticjob_operator.api import ElasticJob
from elasticjob_operator.cluster.api import MERGE_PATCH, Api, ApiError, ConflictError, NamespaceGoesError, NotFoundError, RefusedError
from elasticjob_operator.cluster.resources import JOBS, OWNED, PODS, Resource
from elasticjob_operator.cluster.store import Json
from elasticjob_operator.planning import Action, AskServer, CreateObject, CreatePod, DeleteJob, DeleteObject, DeletePod, PatchObject
from elasticjob_operator.world import Admission

log = logging.getLogger(__name__)

IN_FLIGHT = 64

_STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
"""Of a template, a misspelt field is refused rather than dropped."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """What became of a plan's actions, where the next plan must know."""

    admission: Admission | None = None
    refusal: str = ""
    """The server's words on a create that it refused, pods before others; empty: it refused none."""
    refused: frozenset[str] = frozenset()
    """Kinds of what it refused."""
    created: frozenset[str] = frozenset()
    """Kinds of what is there now."""
    done: tuple[Action, ...] = ()
    """What was created and deleted."""
    namespace_goes: bool = False
    """A create was refused because the job's namespace is being terminated."""


class Writer:
    """`enter(resource, body)`: the state of an object after our write."""

    def __init__(self, api: Api, enter: Callable[[Resource, Json], None]) -> None:
        self._api = api
        self._enter = enter
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    async def apply(self, job: ElasticJob, actions: Iterable[Action]) -> Applied:
        """Raises ApiError or ConnectionError after all were tried."""
        results = await asyncio.gather(*(self._execute(job, action) for action in actions), return_exceptions=True)
        failures = [each for each in results if isinstance(each, BaseException)]
        # A bug or a cancellation before what merely may pass.
        for failure in sorted(failures, key=lambda each: isinstance(each, ApiError | ConnectionError)):
            raise failure
        known = [each for each in results if isinstance(each, Applied)]
        return Applied(
            admission=next((each.admission for each in known if each.admission), None),
            refusal=_first_refusal(known),
            refused=frozenset().union(*(each.refused for each in known)),
            created=frozenset().union(*(each.created for each in known)),
            done=tuple(action for each in known for action in each.done),
            namespace_goes=any(each.namespace_goes for each in known),
        )

    async def _execute(self, job: ElasticJob, action: Action) -> Applied:
        try:
            return await self._carry_out(job, action)
        except NamespaceGoesError:
            return Applied(namespace_goes=True)

    async def _carry_out(self, job: ElasticJob, action: Action) -> Applied:
        async with self._slots:
            match action:
                case CreatePod():
                    return await self._create(job, PODS, action)
                case CreateObject():
                    return await self._create(job, OWNED[action.kind], action)
                case PatchObject():
                    await self._patch(job, action)
                case DeletePod():
                    return await self._delete(job, PODS, action, force=action.force)
                case DeleteObject():
                    return await self._delete(job, OWNED[action.kind], action)
                case DeleteJob():
                    return await self._delete(job, JOBS, action)
                case AskServer():
                    return Applied(admission=await self._ask(job, action))
                case _:
                    raise TypeError(f"not for the cluster: {action!r}")
        return Applied()

    async def _create(self, job: ElasticJob, resource: Resource, action: CreatePod | CreateObject) -> Applied:
        body: Json = dict(action.body)
        query = {"fieldManager": names.FIELD_MANAGER}
        try:
            created = await self._api.request("POST", resource.path(job.namespace), query=query, body=body)
        except ConflictError:
            return await self._exists(job, resource, action)
        except NamespaceGoesError:
            raise
        except (RefusedError, NotFoundError) as error:
            return Applied(refusal=str(error), refused=frozenset({resource.kind}))
        self._enter(resource, created)
        return Applied(created=frozenset({resource.kind}), done=(action,))

    async def _exists(self, job: ElasticJob, resource: Resource, action: CreatePod | CreateObject) -> Applied:
        """Created before, by us; or somebody else's, which is left alone."""
        name = action.body["metadata"]["name"]
        try:
            found = await self._api.request("GET", resource.path(job.namespace, name))
        except NotFoundError:
            return Applied()  # gone meanwhile: the next plan creates it
        owners = [each["uid"] for each in found["metadata"].get("ownerReferences") or []]
        if job.uid in owners:
            self._enter(resource, found)
            return Applied(created=frozenset({resource.kind}), done=(action,))
        if (found["metadata"].get("labels") or {}).get(names.LABEL_JOB):
            return Applied()  # of an earlier job of that name: the informer tells when it is gone
        kind = resource.kind
        refusal = f"{kind} {name} exists and does not belong to this job: delete it, or give the job another name"
        return Applied(refusal=refusal, refused=frozenset({kind}))

    async def _patch(self, job: ElasticJob, action: PatchObject) -> None:
        resource = OWNED[action.kind]
        # The uid makes the server refuse (409 or 422) where another object has taken the name.
        patch = {**action.patch, "metadata": {**action.patch.get("metadata", {}), "uid": action.uid}}
        path, query = resource.path(job.namespace, action.name), {"fieldManager": names.FIELD_MANAGER}
        try:
            self._enter(resource, await self._api.request("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH))
        except (ConflictError, NotFoundError, RefusedError) as error:
            log.warning("cannot put %s right: %s", action.name, error, extra={"reason": action.why})

    async def _delete(
        self, job: ElasticJob, resource: Resource, action: DeletePod | DeleteObject | DeleteJob, *, force: bool = False
    ) -> Applied:
        options: dict[str, Any] = {"preconditions": {"uid": action.uid}, "propagationPolicy": "Background"}
        if force:
            options["gracePeriodSeconds"] = 0
        try:
            answer = await self._api.request("DELETE", resource.path(job.namespace, action.name), body=options)
        except (NotFoundError, ConflictError):
            return Applied()  # gone, or a successor has its name
        metadata = answer.get("metadata") or {}
        if not force and metadata.get("deletionTimestamp") and metadata.get("uid") == action.uid:
            self._enter(resource, answer)
        return Applied(done=(action,))

    async def _ask(self, job: ElasticJob, action: AskServer) -> Admission:
        """Raises ApiError or ConnectionError where there was no verdict."""
        refusal, invalid = "", False
        try:
            await self._api.request("POST", PODS.path(job.namespace), query=_STRICT, body=dict(action.body))
        except ConflictError:
            pass  # a pod of that name exists: all checks of this one were passed
        except NamespaceGoesError:
            raise
        except RefusedError as error:
            refusal, invalid = str(error), error.status in (400, 422)
        now = datetime.datetime.now(datetime.timezone.utc)
        return Admission(template_hash=action.template_hash, refusal=refusal, invalid=invalid, at=now)


def _first_refusal(known: Iterable[Applied]) -> str:
    refused = [each for each in known if each.refusal]
    return min(refused, key=lambda each: PODS.kind not in each.refused).refusal if refused else ""
