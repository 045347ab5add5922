"""Carrying out actions: one request each, so many at once, and no job at the cost of another.

Pods are created as the Job controller of Kubernetes does it: one, then two, then four at once, twice as many each time
all went well. The first rejection ends it: a quota that is used up costs one request, however many pods are wanted,
and a webhook that hangs holds one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from elasticjob_operator import names
from elasticjob_operator.api import ElasticJob
from elasticjob_operator.kube.api_resources import JOBS, OWNED, PODS, ApiResource
from elasticjob_operator.kube.cache import Json
from elasticjob_operator.kube.client import (
    MERGE_PATCH,
    ApiError,
    ConflictError,
    KubeClient,
    NamespaceTerminatingError,
    NotFoundError,
    RefusedError,
    RequestTimeoutError,
)
from elasticjob_operator.kube.request_slots import FairSlots
from elasticjob_operator.planning import (
    Action,
    CreateObject,
    CreatePod,
    DeleteJob,
    DeleteObject,
    DeletePod,
    DryRunCreate,
    PatchObject,
)
from elasticjob_operator.state import Admission

log = logging.getLogger(__name__)

CREATES, CREATES_OF_A_JOB = 64, 32
"""Creates under way."""
PROBES, PROBES_OF_A_NAMESPACE = 24, 6
"""Beside them: dry runs, and creates of jobs that were refused last time. Nobody knows whether the server takes them,
or how long it needs to say so: a webhook may let each wait for 30 s. They take no place from creates that go well."""
REMOVALS, REMOVALS_OF_A_JOB = 48, 24
"""Deletes and patches under way: never behind creates, because they free what creates wait for."""

_STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
"""Of a template, a misspelt field is refused rather than dropped."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApplyResult:
    """What became of a plan's actions, where the next plan must know."""

    admission: Admission | None = None
    rejection: str = ""
    """The server's words on a create that it refused, pods before others; empty: it refused none."""
    refused: frozenset[str] = frozenset()
    """Kinds of what it refused."""
    created: frozenset[str] = frozenset()
    """Kinds of what is there now."""
    missed: bool = False
    """A create met something that was gone a moment later: it is to be tried again, and nothing else may wake the
    job."""
    done: tuple[Action, ...] = ()
    """What was created and deleted."""
    unanswered: bool = False
    """The admission is the server's failure to say, not its verdict."""
    failure: Exception | None = None
    """ApiError or ConnectionError of another request: it may pass."""

    @property
    def stops(self) -> bool:
        """More of the same would fare no better now."""
        return bool(self.rejection or self.failure or self.namespace_terminating)

    namespace_terminating: bool = False
    """A create was refused because the job's namespace is being terminated."""


class Writer:
    """`on_written(resource, body)`: the state of an object after our write."""

    def __init__(self, api: KubeClient, on_written: Callable[[ApiResource, Json], None]) -> None:
        self._client = api
        self._on_written = on_written
        self._creates = FairSlots(CREATES, CREATES_OF_A_JOB)
        self._probes = FairSlots(PROBES, PROBES_OF_A_NAMESPACE)
        self._removals = FairSlots(REMOVALS, REMOVALS_OF_A_JOB)

    async def apply(self, job: ElasticJob, actions: Iterable[Action], *, refused: bool = False) -> ApplyResult:
        """Carries out what can be. `refused`: the last create of this job was. What fails and may pass is in `failure`;
        bugs are raised."""
        actions = list(actions)
        pods = [action for action in actions if isinstance(action, CreatePod)]
        others = [action for action in actions if not isinstance(action, CreatePod)]
        created, rest = await asyncio.gather(
            self._ramp_up(job, pods, refused=refused),
            asyncio.gather(*(self._execute(job, action, refused=refused) for action in others)),
        )
        return _merged([*created, *rest])

    async def _ramp_up(self, job: ElasticJob, actions: list[CreatePod], *, refused: bool) -> list[ApplyResult]:
        """Each create that went well lets one more go beside it, so that they double with each answer; what did not
        ends them all."""
        results: list[ApplyResult] = []
        left, lanes, stopped = iter(actions), 0, False

        async def lane() -> None:
            nonlocal lanes, stopped
            for action in left:
                result = await self._execute(job, action, refused=refused)
                results.append(result)
                stopped = stopped or result.stops
                if stopped:
                    return
                if result.created and lanes < min(CREATES_OF_A_JOB, len(actions)):
                    lanes += 1
                    group.create_task(lane())

        async with asyncio.TaskGroup() as group:
            if actions:
                lanes += 1
                group.create_task(lane())
        return results

    async def _execute(self, job: ElasticJob, action: Action, *, refused: bool) -> ApplyResult:
        try:
            async with self._slot(job, action, refused=refused):
                return await self._dispatch(job, action)
        except NamespaceTerminatingError:
            return ApplyResult(namespace_terminating=True)
        except (ApiError, ConnectionError) as error:
            return ApplyResult(failure=error)

    @contextlib.asynccontextmanager
    async def _slot(self, job: ElasticJob, action: Action, *, refused: bool) -> AsyncIterator[None]:
        creates = isinstance(action, CreatePod | CreateObject)
        if isinstance(action, DryRunCreate) or (creates and refused):
            slot = self._probes.hold(job.namespace)
        else:
            slot = (self._creates if creates else self._removals).hold((job.namespace, job.name))
        async with slot:
            yield

    async def _dispatch(self, job: ElasticJob, action: Action) -> ApplyResult:
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
            case DryRunCreate():
                return await self._dry_run(job, action)
            case _:
                raise TypeError(f"not for the cluster: {action!r}")
        return ApplyResult()

    async def _create(self, job: ElasticJob, resource: ApiResource, action: CreatePod | CreateObject) -> ApplyResult:
        body: Json = dict(action.body)
        query = {"fieldManager": names.FIELD_MANAGER}
        try:
            created = await self._client.request("POST", resource.path(job.namespace), query=query, body=body)
        except ConflictError:
            return await self._exists(job, resource, action)
        except NamespaceTerminatingError:
            raise
        except ApiError as error:
            # 5xx too: a webhook that is broken, say. Without an answer at all nothing can be told: no status would be
            # written either.
            return ApplyResult(rejection=str(error), refused=frozenset({resource.kind}))
        except RequestTimeoutError as error:
            return ApplyResult(rejection=f"{error}: an admission webhook may hang", refused=frozenset({resource.kind}))
        self._on_written(resource, created)
        return ApplyResult(created=frozenset({resource.kind}), done=(action,))

    async def _exists(self, job: ElasticJob, resource: ApiResource, action: CreatePod | CreateObject) -> ApplyResult:
        """Created before, by us; or somebody else's, which is left alone."""
        name = action.body["metadata"]["name"]
        try:
            found = await self._client.request("GET", resource.path(job.namespace, name))
        except NotFoundError:
            return ApplyResult(
                missed=True
            )  # gone meanwhile, or a conflict about something else, such as the quota: the next plan creates it
        owners = [each["uid"] for each in found["metadata"].get("ownerReferences") or []]
        if job.uid in owners:
            self._on_written(resource, found)
            return ApplyResult(created=frozenset({resource.kind}), done=(action,))
        owner = (found["metadata"].get("labels") or {}).get(names.LABEL_JOB)
        if owner == job.name:
            return ApplyResult()  # of an earlier job of that name: the informer tells when it is gone
        kind = resource.kind
        whose = f"belongs to ElasticJob {owner}" if owner else "does not belong to this job"
        rejection = f"{kind} {name} exists and {whose}: delete it, or give this job another name"
        return ApplyResult(rejection=rejection, refused=frozenset({kind}))

    async def _patch(self, job: ElasticJob, action: PatchObject) -> None:
        resource = OWNED[action.kind]
        # The uid makes the server refuse (409 or 422) where another object has taken the name.
        patch = {**action.patch, "metadata": {**action.patch.get("metadata", {}), "uid": action.uid}}
        path, query = resource.path(job.namespace, action.name), {"fieldManager": names.FIELD_MANAGER}
        try:
            self._on_written(
                resource, await self._client.request("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH)
            )
        except (ConflictError, NotFoundError, RefusedError) as error:
            log.warning("cannot put %s right: %s", action.name, error, extra={"reason": action.reason})

    async def _delete(
        self,
        job: ElasticJob,
        resource: ApiResource,
        action: DeletePod | DeleteObject | DeleteJob,
        *,
        force: bool = False,
    ) -> ApplyResult:
        options: dict[str, Any] = {"preconditions": {"uid": action.uid}, "propagationPolicy": "Background"}
        if force:
            options["gracePeriodSeconds"] = 0
        try:
            answer = await self._client.request("DELETE", resource.path(job.namespace, action.name), body=options)
        except (NotFoundError, ConflictError):
            return ApplyResult()  # gone, or a successor has its name
        metadata = answer.get("metadata") or {}
        if not force and metadata.get("deletionTimestamp") and metadata.get("uid") == action.uid:
            self._on_written(resource, answer)
        return ApplyResult(done=(action,))

    async def _dry_run(self, job: ElasticJob, action: DryRunCreate) -> ApplyResult:
        rejection, invalid, unanswered = "", False, False
        try:
            await self._client.request("POST", PODS.path(job.namespace), query=_STRICT, body=dict(action.body))
        except ConflictError:
            pass  # a pod of that name exists: all checks of this one were passed
        except NamespaceTerminatingError:
            raise
        except RefusedError as error:
            rejection, invalid = str(error), error.status in (400, 422)
        except ApiError as error:
            rejection, unanswered = str(error), True
        except RequestTimeoutError as error:
            rejection, unanswered = f"{error}: an admission webhook may hang", True
        now = datetime.datetime.now(datetime.timezone.utc)
        admission = Admission(template_hash=action.template_hash, rejection=rejection, invalid=invalid, at=now)
        return ApplyResult(admission=admission, unanswered=unanswered)


def _merged(results: list[ApplyResult]) -> ApplyResult:
    asked = next((each for each in results if each.admission), ApplyResult())
    return ApplyResult(
        admission=asked.admission,
        unanswered=asked.unanswered,
        rejection=_first_rejection(results),
        refused=frozenset().union(*(each.refused for each in results)),
        created=frozenset().union(*(each.created for each in results)),
        missed=any(each.missed for each in results),
        done=tuple(action for each in results for action in each.done),
        namespace_terminating=any(each.namespace_terminating for each in results),
        failure=next((each.failure for each in results if each.failure), None),
    )


def _first_rejection(results: Iterable[ApplyResult]) -> str:
    refused = [each for each in results if each.rejection]
    return min(refused, key=lambda each: PODS.kind not in each.refused).rejection if refused else ""
