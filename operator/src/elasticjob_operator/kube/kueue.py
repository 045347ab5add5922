"""Kueue as far as the operator sees it: Workloads of jobs, flavors and priority classes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from elasticjob_operator import names
from elasticjob_operator.kube.adoption import Adoption
from elasticjob_operator.kube.api_resources import FLAVORS, PRIORITY_CLASSES, QUEUE_PRIORITIES, WORKLOADS
from elasticjob_operator.kube.cache import Json, ObjectCache
from elasticjob_operator.kube.client import KubeClient
from elasticjob_operator.kube.convert import job_of
from elasticjob_operator.kube.discovery import START_SECONDS, OptionalApi
from elasticjob_operator.kube.informer import Informer
from elasticjob_operator.kube.queue_convert import flavor_of, pod_priority_of, priority_of, workload_of
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.queue_state import Flavor, PodPriority, QueueView, Workload

_OTHERS = 8
"""So many names for surplus of a job may be those of other jobs' Workloads."""


class Kueue(OptionalApi):
    """`changed(key)` is called when a Workload of that job changes, `changed_all()` when what all queued jobs depend on
    does: a flavor, a priority class, or whether Kueue is there."""

    def __init__(
        self,
        api: KubeClient,
        namespaces: Sequence[str],
        changed: Callable[[NamespacedName], None],
        changed_all: Callable[[], None],
    ) -> None:
        self._workloads: ObjectCache[Workload] = ObjectCache(workload_of, job_of, changed)
        self._flavors: ObjectCache[Flavor] = ObjectCache(flavor_of, _cluster_wide, lambda _: changed_all())
        self._priorities: ObjectCache[int] = ObjectCache(priority_of, _cluster_wide, lambda _: changed_all())
        self._pod_priorities: ObjectCache[PodPriority] = ObjectCache(
            pod_priority_of, _cluster_wide, lambda _: changed_all()
        )
        # An older chart grants no access to them: then they count as priority 0.
        self._priority_classes = Informer(api, PRIORITY_CLASSES, self._pod_priorities, optional=True)
        watched = ((WORKLOADS, self._workloads), (FLAVORS, self._flavors), (QUEUE_PRIORITIES, self._priorities))
        adoption = Adoption(api, WORKLOADS, self._workloads)
        super().__init__(api, namespaces, watched, changed_all, adoption.may_exist)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._priority_classes.run())
            group.create_task(super().run())

    async def started(self) -> None:
        await super().started()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self._priority_classes.synced.wait()

    def view(self, key: NamespacedName, uid: str) -> QueueView:
        problem = f"The operator may not watch {', '.join(self.forbidden)}" if self.forbidden else ""
        return QueueView(
            problem=problem if self.served else f"The API server does not serve {self.api_version}",
            workloads=tuple(workload for workload in self._workloads.of(key) if workload.owner_uid == uid),
            foreign=tuple(workload for workload in self._workloads.of(key) if workload.owner_uid != uid),
            taken=_taken(self._workloads, key),
            flavors=self._flavors.by_name,
            priorities=self._priorities.by_name,
            pod_priorities=self._pod_priorities.by_name,
        )


def _taken(workloads: ObjectCache[Workload], key: NamespacedName) -> frozenset[str]:
    namespace, job = key
    numbers = range(workloads.count(key) + _OTHERS)
    candidates = (names.surplus_workload(job, number) for number in numbers)
    return frozenset(name for name in candidates if workloads.get((namespace, name)) is not None)


def _cluster_wide(body: Json) -> NamespacedName:
    return "", body["metadata"]["name"]
