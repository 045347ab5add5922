"""Executes actions: one request each, with limits on concurrency that are fair between jobs.

Pods are created with the slow start of Kubernetes' Job controller: one, then two, then four at once, doubling with each
success. The first rejection ends it: an exhausted quota costs one request per reconciliation, however many pods are
needed, and a hanging webhook holds one slot.

Secrets go first: a pod whose Secret does not exist yet starts late, and the name of a Secret is known only from the
StatefulSet that mounts it.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator import names
from elasticjob_operator.kube.api_resources import JOBS, PODS, WORKLOADS, WRITTEN, ApiResource
from elasticjob_operator.kube.apply_result import ApplyResult, merged
from elasticjob_operator.kube.cache import Json
from elasticjob_operator.kube.client import (
    MERGE_PATCH,
    ApiError,
    ConflictError,
    KubeClient,
    NamespaceTerminatingError,
    NotFoundError,
    RejectedError,
    RequestTimeoutError,
)
from elasticjob_operator.kube.etcd_secrets import EtcdSecrets
from elasticjob_operator.kube.jobs import read_job
from elasticjob_operator.kube.request_slots import FairSlots
from elasticjob_operator.kube.secret_writer import MakeCertificates, SecretWriter
from elasticjob_operator.planning import (
    Action,
    CreateCertificates,
    CreateObject,
    CreatePod,
    CreateRunUser,
    DeleteCertificates,
    DeleteJob,
    DeleteObject,
    DeletePod,
    DryRunCreate,
    PatchObject,
    PatchPod,
)
from elasticjob_operator.state import Admission, Kind

log = logging.getLogger(__name__)

CREATES, CREATES_PER_JOB = 128, 64
"""Concurrent creates."""
DRY_RUNS, DRY_RUNS_PER_NAMESPACE = 24, 6
"""Concurrent dry runs, and creates of jobs whose last create was rejected. They may hang for 30 s each in a webhook, so
they take no slots from creates that succeed."""
REMOVALS, REMOVALS_PER_JOB = 48, 24
"""Concurrent deletes and patches: never behind creates, because they free what creates wait for."""

_DENIED = re.compile(r"denied (?:the )?request")
"""What an admission policy or webhook says, with any status: what it denies now, it may allow later."""
_OF_SECRETS = CreateCertificates | CreateRunUser | DeleteCertificates
_STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
"""A misspelt field of a template is rejected rather than dropped."""


class Writer:
    """`on_written(resource, body)` receives an object after our write, but no Secret."""

    def __init__(
        self,
        api: KubeClient,
        on_written: Callable[[ApiResource, Json], None],
        make_certificates: MakeCertificates,
        etcd_secrets: EtcdSecrets,
    ) -> None:
        self._client = api
        self._on_written = on_written
        self._secrets = SecretWriter(api, make_certificates, etcd_secrets)
        self._creates = FairSlots(CREATES, CREATES_PER_JOB)
        self._dry_runs = FairSlots(DRY_RUNS, DRY_RUNS_PER_NAMESPACE)
        self._removals = FairSlots(REMOVALS, REMOVALS_PER_JOB)

    async def apply(self, job: ElasticJob, actions: Iterable[Action], *, rejected: bool = False) -> ApplyResult:
        """Executes the actions. `rejected`: the last create of this job was rejected. Returns a temporary failure in
        `failure`; raises bugs."""
        actions = list(actions)
        first = [action for action in actions if isinstance(action, _OF_SECRETS)]
        secrets = [await self._execute(job, action, rejected=rejected) for action in first]
        left = [action for action in actions if action not in first]
        if any(secret.stops for secret in secrets):
            left = [action for action in left if not isinstance(action, CreatePod | CreateObject | DeleteObject)]
        pods = [action for action in left if isinstance(action, CreatePod)]
        of_pods = [action for action in left if isinstance(action, DeletePod | PatchPod)]
        others = [action for action in left if not isinstance(action, CreatePod | DeletePod | PatchPod)]
        created, removed, rest = await asyncio.gather(
            self._ramp_up(job, pods, rejected=rejected),
            self._remove(job, of_pods),
            asyncio.gather(*(self._execute(job, action, rejected=rejected) for action in others)),
        )
        return merged([*secrets, *created, *removed, *rest])

    async def _remove(self, job: ElasticJob, actions: list[DeletePod | PatchPod]) -> list[ApplyResult]:
        """A few tasks for all, however many there are: the first steps of thousands would hold up everything else."""
        left = iter(actions)

        async def lane() -> list[ApplyResult]:
            return [await self._execute(job, action, rejected=False) for action in left]

        lanes = await asyncio.gather(*(lane() for _ in range(min(REMOVALS_PER_JOB, len(actions)))))
        return [result for results in lanes for result in results]

    async def _ramp_up(self, job: ElasticJob, actions: list[CreatePod], *, rejected: bool) -> list[ApplyResult]:
        """Each successful create starts one more, so that their number doubles with each response; the first failure
        ends them all."""
        results: list[ApplyResult] = []
        left, lanes, stopped = iter(actions), 0, False

        async def lane() -> None:
            nonlocal lanes, stopped
            for action in left:
                result = await self._execute(job, action, rejected=rejected)
                results.append(result)
                stopped = stopped or result.stops
                if stopped:
                    return
                if result.created and lanes < min(CREATES_PER_JOB, len(actions)):
                    lanes += 1
                    group.create_task(lane())

        async with asyncio.TaskGroup() as group:
            if actions:
                lanes += 1
                group.create_task(lane())
        return results

    async def _execute(self, job: ElasticJob, action: Action, *, rejected: bool) -> ApplyResult:
        try:
            async with self._slot(job, action, rejected=rejected):
                return await self._dispatch(job, action)
        except NamespaceTerminatingError:
            return ApplyResult(namespace_terminating=True)
        except (ApiError, ConnectionError) as error:
            return ApplyResult(failure=error)

    def _slot(self, job: ElasticJob, action: Action, *, rejected: bool) -> AbstractAsyncContextManager[None]:
        creates = isinstance(action, CreatePod | CreateObject | CreateCertificates | CreateRunUser)
        if isinstance(action, DryRunCreate) or (creates and rejected):
            return self._dry_runs.hold(job.namespace)
        return (self._creates if creates else self._removals).hold((job.namespace, job.name))

    async def _dispatch(self, job: ElasticJob, action: Action) -> ApplyResult:
        match action:
            case CreatePod():
                return await self._create(job, PODS, action)
            case CreateObject():
                return await self._create_object(job, action)
            case CreateCertificates():
                return await self._secrets.create_certificates(job, action)
            case CreateRunUser():
                return await self._secrets.create_run_user(job, action)
            case DeleteCertificates():
                return await self._secrets.delete_certificates(job, action)
            case PatchObject() | PatchPod():
                result = await self._patch(job, action)
            case DeletePod() | DeleteObject() | DeleteJob():
                return await self._delete(job, action)
            case DryRunCreate():
                return await self._dry_run(job, action)
            case _:
                raise TypeError(f"not an action on the cluster: {action!r}")
        return result

    async def _create_object(self, job: ElasticJob, action: CreateObject) -> ApplyResult:
        if action.kind is Kind.WORKLOAD and not await self._is_there(job):
            return ApplyResult()
        return await self._create(job, WRITTEN[action.kind], action)

    async def _is_there(self, job: ElasticJob) -> bool:
        """The garbage collector may delete a job's Workloads before the watch says that the job is gone. Another one
        would get quota, and hold it until the garbage collector comes again."""
        try:
            found = await read_job(self._client, (job.namespace, job.name))
        except NotFoundError:
            return False
        metadata = found["metadata"]
        return bool(metadata["uid"] == job.uid and not metadata.get("deletionTimestamp"))

    async def _create(self, job: ElasticJob, resource: ApiResource, action: CreatePod | CreateObject) -> ApplyResult:
        body: Json = dict(action.body)
        query = {"fieldManager": names.FIELD_MANAGER}
        try:
            created = await self._client.request("POST", resource.path(job.namespace), query=query, body=body)
        except ConflictError:
            return await self._exists(job, resource, action)
        except NamespaceTerminatingError:
            raise
        except (ApiError, RequestTimeoutError) as error:
            # Includes 5xx, for example of a broken webhook. Without any response the status could not be written
            # either.
            return ApplyResult(rejection=str(error), rejected_kinds=frozenset({resource.kind}))
        self._on_written(resource, created)
        return ApplyResult(created=frozenset({resource.kind}), done=(action,))

    async def _exists(self, job: ElasticJob, resource: ApiResource, action: CreatePod | CreateObject) -> ApplyResult:
        """The object exists: either we created it earlier, or it belongs to another owner and is left alone."""
        name = action.body["metadata"]["name"]
        try:
            found = await self._client.request("GET", resource.path(job.namespace, name))
        except NotFoundError:
            # Deleted in the meantime, or another conflict, such as with the quota: the next plan creates it.
            return ApplyResult(missed=True)
        if job.uid in [reference["uid"] for reference in found["metadata"].get("ownerReferences") or []]:
            if resource is WORKLOADS:
                return await self._with_labels(job, found, action)
            self._on_written(resource, found)
            return ApplyResult(created=frozenset({resource.kind}), done=(action,))
        owner = (found["metadata"].get("labels") or {}).get(names.LABEL_JOB)
        if owner == job.name:
            self._on_written(resource, found)
            return ApplyResult()  # of a deleted job of that name: the next plan sees it (planning/left_behind.py)
        whose = f"belongs to ElasticJob {owner}" if owner else "does not belong to this job"
        kind = resource.kind
        rejection = f"{kind} {name} exists and {whose}: delete it, or give this job another name"
        return ApplyResult(rejection=rejection, rejected_kinds=frozenset({kind}))

    async def _with_labels(self, job: ElasticJob, found: Json, action: CreatePod | CreateObject) -> ApplyResult:
        """A Workload of the job. Without its labels, no watch would report it. That of the template is not given back:
        for which template it was made is unknown."""
        metadata, created = found["metadata"], ApplyResult(created=frozenset({WORKLOADS.kind}), done=(action,))
        wanted = {key: value for key, value in action.body["metadata"]["labels"].items() if key != names.LABEL_TEMPLATE}
        if wanted.items() <= (metadata.get("labels") or {}).items():
            self._on_written(WORKLOADS, found)
            return created
        path, patch = WORKLOADS.path(job.namespace, metadata["name"]), {"uid": metadata["uid"], "labels": wanted}
        try:
            query = {"fieldManager": names.FIELD_MANAGER}
            answer = await self._client.request(
                "PATCH", path, query=query, body={"metadata": patch}, content_type=MERGE_PATCH
            )
        except (ConflictError, NotFoundError):
            return ApplyResult(missed=True)
        except NamespaceTerminatingError:
            raise
        except (ApiError, RequestTimeoutError) as error:
            said = f"Workload {metadata['name']} lacks labels of this job, and cannot be given them back: {error}"
            return ApplyResult(rejection=said, rejected_kinds=frozenset({WORKLOADS.kind}))
        log.warning("Workload %s/%s has its labels again, which were removed", job.namespace, metadata["name"])
        self._on_written(WORKLOADS, answer)
        return created

    async def _patch(self, job: ElasticJob, action: PatchObject | PatchPod) -> ApplyResult:
        """One by which an object becomes the job's own is as much as a create: the job says why it is rejected."""
        adopts = "ownerReferences" in action.patch.get("metadata", {})
        resource = _resource_of(action)
        # With the UID the server rejects the patch (409 or 422) if another object has the name now.
        patch = {**action.patch, "metadata": {**action.patch.get("metadata", {}), "uid": action.uid}}
        subresource = action.subresource if isinstance(action, PatchObject) else ""
        path, query = resource.path(job.namespace, action.name, subresource), {"fieldManager": names.FIELD_MANAGER}
        try:
            self._on_written(
                resource, await self._client.request("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH)
            )
        except (ConflictError, NotFoundError, RejectedError) as error:
            log.warning("Cannot patch %s: %s", action.name, error, extra={"reason": action.reason})
            # 422 is also the answer where another object has the name now.
            if adopts and (error.status == 403 or _DENIED.search(str(error))):
                said = f"{resource.kind} {action.name} cannot become this job's own: {error}"
                return ApplyResult(rejection=said, rejected_kinds=frozenset({resource.kind}))
            return ApplyResult()
        return ApplyResult(created=frozenset({resource.kind} if adopts else ()))

    async def _delete(self, job: ElasticJob, action: DeletePod | DeleteObject | DeleteJob) -> ApplyResult:
        force = isinstance(action, DeletePod) and action.force
        resource = _resource_of(action)
        options: dict[str, Any] = {"preconditions": {"uid": action.uid}, "propagationPolicy": "Background"}
        if force:
            options["gracePeriodSeconds"] = 0
        try:
            answer = await self._client.request("DELETE", resource.path(job.namespace, action.name), body=options)
        except (NotFoundError, ConflictError):
            return ApplyResult()  # deleted, or replaced by another object of the name
        metadata = answer.get("metadata") or {}
        if not force and metadata.get("deletionTimestamp") and metadata.get("uid") == action.uid:
            self._on_written(resource, answer)
        return ApplyResult(done=(action,))

    async def _dry_run(self, job: ElasticJob, action: DryRunCreate) -> ApplyResult:
        rejection, invalid, unanswered = "", False, False
        try:
            await self._client.request("POST", PODS.path(job.namespace), query=_STRICT, body=dict(action.body))
        except ConflictError:
            pass  # a pod of that name exists: this one passed all checks
        except NamespaceTerminatingError:
            raise
        except RejectedError as error:
            rejection, invalid = str(error), error.status in (400, 422) and not _DENIED.search(str(error))
        except (ApiError, RequestTimeoutError) as error:
            rejection, unanswered = str(error), True
        now = datetime.datetime.now(datetime.timezone.utc)
        admission = Admission(
            template_hash=action.template_hash,
            image_volume=action.image_volume,
            rejection=rejection,
            invalid=invalid,
            at=now,
        )
        return ApplyResult(admission=admission, unanswered=unanswered)


def _resource_of(action: PatchPod | DeletePod | PatchObject | DeleteObject | DeleteJob) -> ApiResource:
    match action:
        case PatchPod() | DeletePod():
            return PODS
        case PatchObject() | DeleteObject():
            return WRITTEN[action.kind]
        case DeleteJob():
            return JOBS
