"""Kueue as far as the operator sees it: found by API discovery, then watched.

A cluster without Kueue costs a request now and then, and nothing is logged about it. Kueue may be installed and removed
while the operator runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from elasticjob_operator import names
from elasticjob_operator.kube.api_resources import FLAVORS, QUEUE_PRIORITIES, WORKLOADS, ApiResource
from elasticjob_operator.kube.cache import Json, ObjectCache
from elasticjob_operator.kube.client import ApiError, KubeClient, NotFoundError
from elasticjob_operator.kube.convert import job_of
from elasticjob_operator.kube.informer import Informer
from elasticjob_operator.kube.queue_convert import flavor_of, priority_of, workload_of
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.queue_state import Flavor, QueueView, Workload
from elasticjob_operator.queueing.bodies import API_VERSION

log = logging.getLogger(__name__)

DISCOVERY_SECONDS = 15.0
START_SECONDS = 10.0
"""How long the operator's start waits for what Kueue has, so that no job is taken for one without Workloads."""
NOT_INSTALLED = f"The API server does not serve {API_VERSION}"


class Kueue:
    """`changed(key)` is called when a Workload of that job changes, `changed_all()` when what all queued jobs depend on
    does: a flavor, a priority class, or whether Kueue is there."""

    def __init__(
        self,
        api: KubeClient,
        namespaces: Sequence[str],
        changed: Callable[[NamespacedName], None],
        changed_all: Callable[[], None],
    ) -> None:
        self._client = api
        self._namespaces = namespaces
        self._changed_all = changed_all
        self._workloads: ObjectCache[Workload] = ObjectCache(workload_of, job_of, changed)
        self._flavors: ObjectCache[Flavor] = ObjectCache(flavor_of, _cluster_wide, lambda _: changed_all())
        self._priorities: ObjectCache[int] = ObjectCache(priority_of, _cluster_wide, lambda _: changed_all())
        self._informers: dict[str, Informer] = {}
        """Of Workloads, by namespace."""
        self._others: list[Informer] = []
        self._watches: list[asyncio.Task[None]] = []
        self._problem = NOT_INSTALLED
        self._known = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                with contextlib.suppress(ApiError, ConnectionError):  # nothing is known: as before
                    await self._look(await self._is_served())
                await asyncio.sleep(DISCOVERY_SECONDS)
        finally:
            await self._stop()

    async def started(self) -> None:
        """Returns once it is known what Kueue has, or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self._known.wait()

    def view(self, key: NamespacedName, uid: str) -> QueueView:
        return QueueView(
            problem=self._problem,
            workloads=tuple(workload for workload in self._workloads.of(key) if workload.owner_uid == uid),
            flavors=self._flavors.by_name,
            priorities=self._priorities.by_name,
        )

    def on_written(self, body: Json) -> None:
        """The response to our own write of a Workload."""
        informer = self._informers.get(body["metadata"]["namespace"]) or self._informers.get("")
        if informer is not None:
            informer.on_written(body)

    async def _is_served(self) -> bool:
        """Raises ApiError or ConnectionError."""
        try:
            await self._client.request("GET", f"/apis/{API_VERSION}")
        except NotFoundError:
            return False
        return True

    async def _look(self, served: bool) -> None:
        if served and not self._watches:
            log.info("Kueue is installed: jobs with the label of a queue wait for their admission")
            self._start()
            await self._wait_until_synced()
        elif not served and self._watches:
            log.info("Kueue is no longer installed")
            await self._stop()
        forbidden = [str(informer) for informer in (*self._informers.values(), *self._others) if informer.forbidden]
        problem = NOT_INSTALLED
        if served:
            problem = f"The operator may not watch {', '.join(forbidden)}" if forbidden else ""
        if problem != self._problem:
            self._problem = problem
            self._changed_all()
        self._known.set()

    async def _wait_until_synced(self) -> None:
        """Before the view is used: until then, each Workload would seem to be missing."""
        await asyncio.gather(*(informer.synced.wait() for informer in (*self._informers.values(), *self._others)))

    def _start(self) -> None:
        for namespace in self._namespaces:
            self._informers[namespace] = Informer(
                self._client,
                WORKLOADS,
                self._workloads,
                namespace=namespace,
                selector=names.LABEL_JOB,
                optional=True,
            )
        self._others = [
            self._of_cluster(FLAVORS, self._flavors),
            self._of_cluster(QUEUE_PRIORITIES, self._priorities),
        ]
        self._watches = [
            asyncio.create_task(informer.run(), name=f"informer of {informer}")
            for informer in (*self._informers.values(), *self._others)
        ]

    def _of_cluster(self, resource: ApiResource, store: ObjectCache[Flavor] | ObjectCache[int]) -> Informer:
        return Informer(self._client, resource, store, optional=True)

    async def _stop(self) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        self._informers, self._others = {}, []
        for store in (self._workloads, self._flavors, self._priorities):
            store.replacement().finish(_LATEST)


_LATEST = 2**63
"""Later than every resourceVersion."""


def _cluster_wide(body: Json) -> NamespacedName:
    return "", body["metadata"]["name"]
