"""PodGroups of jobs, of each scheduler with gangs that the cluster serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from elasticjob_operator.kube.api_resources import POD_GROUPS, ApiResource
from elasticjob_operator.kube.cache import Json, ObjectCache
from elasticjob_operator.kube.client import KubeClient
from elasticjob_operator.kube.convert import job_of, object_of
from elasticjob_operator.kube.discovery import OptionalApi
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.state import Kind, OwnedObject


class PodGroups:
    """`changed(key)` is called when a PodGroup of that job changes, `changed_all()` when one kind comes or goes."""

    def __init__(
        self,
        api: KubeClient,
        namespaces: Sequence[str],
        changed: Callable[[NamespacedName], None],
        changed_all: Callable[[], None],
    ) -> None:
        self._stores: dict[Kind, ObjectCache[OwnedObject]] = {
            kind: ObjectCache(object_of(kind), job_of, changed) for kind in POD_GROUPS
        }
        self._apis = {
            kind: OptionalApi(api, namespaces, ((resource, self._stores[kind]),), changed_all)
            for kind, resource in POD_GROUPS.items()
        }

    def __str__(self) -> str:
        return "schedulers with gangs"

    @property
    def served(self) -> frozenset[Kind]:
        return frozenset(kind for kind, api in self._apis.items() if api.served and not api.forbidden)

    def of(self, key: NamespacedName) -> Iterator[OwnedObject]:
        for store in self._stores.values():
            yield from store.of(key)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for api in self._apis.values():
                group.create_task(api.run())

    async def started(self) -> None:
        await asyncio.gather(*(api.started() for api in self._apis.values()))

    def on_written(self, resource: ApiResource, body: Json) -> None:
        """The response to our own write."""
        for kind, known in POD_GROUPS.items():
            if known is resource:
                self._apis[kind].on_written(resource, body)
