"""Keeps worker pods and Workloads whose labels were removed by hand. A pod that the operator no longer sees would train
on, and so would its replacement; of a Workload, it would not see the eviction.

A watch by label reports such an object as deleted, in its last version with the label. One that was deleted without a
grace period looks the same, so it is read; if it still exists, it gets its labels back. Until then it stays in the
cache, and so a pod holds its index. See docs/design/0013-node-loss.md and 0030-queues.md.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from elasticjob_operator import names
from elasticjob_operator.kube.api_resources import PODS, ApiResource
from elasticjob_operator.kube.cache import Json, ObjectCache, name_of
from elasticjob_operator.kube.client import MERGE_PATCH, ApiError, KubeClient, NotFoundError, RejectedError
from elasticjob_operator.kube.convert import is_of_job

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
_OURS = ("elasticjob.dev/", "app.kubernetes.io/")


class Adoption:
    """`store`: the cache of `resource`."""

    def __init__(self, api: KubeClient, resource: ApiResource, store: ObjectCache[Any]) -> None:
        self._client = api
        self._resource = resource
        self._store = store
        self._checks: set[asyncio.Task[None]] = set()

    def may_exist(self, body: Json) -> bool:
        """Whether an object that is reported as deleted must be read first, which begins now."""
        if "deletionTimestamp" in body["metadata"] or not is_of_job(body["metadata"]):
            return False
        check = asyncio.create_task(self._check(body))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)
        return True

    async def _check(self, body: Json) -> None:
        while True:
            try:
                if not await self._adopt(body):
                    self._store.remove(body)
                return
            except (ApiError, ConnectionError) as error:
                log.warning("Cannot give %s %s/%s its labels back: %s", self._resource.kind, *name_of(body), error)
                if isinstance(error, RejectedError) and self._resource is not PODS:
                    self._store.remove(body)  # what is known of it is no longer true
                    return
                await asyncio.sleep(RETRY_SECONDS)

    async def _adopt(self, body: Json) -> bool:
        """False: the object is gone, or is being deleted."""
        namespace, name = name_of(body)
        path, uid = self._resource.path(namespace, name), body["metadata"]["uid"]
        try:
            found = (await self._client.request("GET", path))["metadata"]
            if found["uid"] != uid or "deletionTimestamp" in found or not is_of_job(found):
                return False
            labels = {key: value for key, value in body["metadata"]["labels"].items() if key.startswith(_OURS)}
            # This one may have been removed before; the admission policy asks for it.
            labels |= {"app.kubernetes.io/managed-by": names.FIELD_MANAGER}
            patch = {"metadata": {"uid": uid, "labels": labels}}
            await self._client.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        except NotFoundError:
            return False
        again = "%s %s/%s has the labels of its ElasticJob again, which were removed"
        log.warning(again, self._resource.kind, namespace, name)
        return True
