"""The cluster as the reconciler sees it: what there is of a job, and carrying out what a plan asks for."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any

from elasticjob_operator import names
from elasticjob_operator.api import ElasticJob
from elasticjob_operator.kube.api_resources import AUTOSCALERS, NODES, OWNED, PODS, ApiResource
from elasticjob_operator.kube.cache import Json, ObjectCache
from elasticjob_operator.kube.client import ApiError, KubeClient
from elasticjob_operator.kube.convert import job_of, object_of, pod_of
from elasticjob_operator.kube.informer import Informer
from elasticjob_operator.kube.jobs import StatusWrite, write_status
from elasticjob_operator.kube.nodes import Heartbeats, NodeCache
from elasticjob_operator.kube.writer import ApplyResult, Writer
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import Action, ReadHeartbeat
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState, Kind, OwnedObject, Pod

log = logging.getLogger(__name__)

NODES_SECONDS = 0.05
"""For how long changes of nodes are gathered, s."""


class Cluster:
    """`changed(key)`: something that belongs to that job changed."""

    def __init__(self, api: KubeClient, settings: Settings, changed: Callable[[NamespacedName], None]) -> None:
        self._client = api
        self._changed = changed
        self._namespaces = settings.namespaces or ("",)
        self._pods: ObjectCache[Pod] = ObjectCache(pod_of, job_of, changed, index=lambda pod: pod.node)
        self._objects: dict[Kind, ObjectCache[OwnedObject]] = {
            kind: ObjectCache(object_of(kind), job_of, changed) for kind in OWNED
        }
        self._nodes = NodeCache(self._on_node)
        self._changed_nodes: set[str] = set()
        self._heartbeats = Heartbeats(api)
        self._informers: dict[tuple[str, str], Informer] = {}
        self._watch(PODS, self._pods)
        for kind, resource in OWNED.items():
            self._watch(resource, self._objects[kind])
        self._node_informer = Informer(api, NODES, self._nodes, optional=True)
        self._writer = Writer(api, self._on_written)

    def _watch(self, resource: ApiResource, store: ObjectCache[Any]) -> None:
        for namespace in self._namespaces:
            # Autoscalers are the one kind that jobs can do without: an older chart gives no right to them.
            optional = resource is AUTOSCALERS
            informer = Informer(
                self._client, resource, store, namespace=namespace, selector=names.LABEL_JOB, optional=optional
            )
            self._informers[resource.plural, namespace] = informer

    @property
    def informers(self) -> tuple[Informer, ...]:
        return (*self._informers.values(), self._node_informer)

    async def synced(self) -> None:
        """Returns when everything was listed once."""
        await asyncio.gather(*(informer.synced.wait() for informer in self.informers))

    def observe(self, key: NamespacedName, uid: str) -> JobState:
        """Without the rendezvous, which is not the cluster's."""
        pods = list(self._pods.of(key))
        objects = [each for store in self._objects.values() for each in store.of(key)]
        foreign = {("Pod", pod.name) for pod in pods if pod.job_uid != uid}
        foreign |= {(each.kind.value, each.name) for each in objects if each.owner_uid != uid}
        return JobState(
            pods=tuple(pod for pod in pods if pod.job_uid == uid),
            names_in_use=frozenset(foreign),
            objects={(each.kind, each.name): each for each in objects if each.owner_uid == uid},
            nodes=None if self._node_informer.forbidden else self._nodes.by_name,
            nodes_watched_since=self._node_informer.watching_since,
            heartbeats=self._heartbeats.by_node,
            node_counts=self._nodes.node_counts,
        )

    def pod_count(self, key: NamespacedName) -> int:
        return self._pods.count(key)

    def has_active_pods(self, key: NamespacedName, uid: str) -> bool:
        return any(pod.job_uid == uid and not pod.ended for pod in self._pods.of(key))

    async def apply(self, job: ElasticJob, actions: Iterable[Action], *, refused: bool = False) -> ApplyResult:
        """Carries out what can be, many at once. `refused`: the last create of this job was. What failed and may pass
        is in `failure`."""
        actions = list(actions)
        nodes = {action.node for action in actions if isinstance(action, ReadHeartbeat)}
        read = await asyncio.gather(*(self._heartbeats.read(node) for node in nodes), return_exceptions=True)
        applied = await self._writer.apply(
            job, [each for each in actions if not isinstance(each, ReadHeartbeat)], refused=refused
        )
        for failure in (each for each in read if isinstance(each, BaseException)):
            if not isinstance(failure, ApiError | ConnectionError):
                raise failure
            applied = dataclasses.replace(applied, failure=failure)
        return applied

    async def write_status(self, key: NamespacedName, uid: str, version: str, status: Json) -> StatusWrite:
        """Refused where the job is not as it was at that resourceVersion. Raises ApiError or ConnectionError."""
        return await write_status(self._client, key, uid, version, status)

    def _on_written(self, resource: ApiResource, body: Json) -> None:
        """The answer to a write of ours, so that the next plan knows."""
        namespace = body["metadata"].get("namespace", "")
        informer = self._informers.get((resource.plural, namespace)) or self._informers.get((resource.plural, ""))
        if informer is not None:
            informer.on_written(body)

    def _on_node(self, node: NamespacedName) -> None:
        """A node came, went, or is ready no more: so many jobs as have pods on it look again. Nodes often change
        together, and a job with pods on several of them looks once."""
        if not self._changed_nodes:
            asyncio.get_running_loop().call_later(NODES_SECONDS, self._tell_of_nodes)
        self._changed_nodes.add(node[1])

    def _tell_of_nodes(self) -> None:
        nodes, self._changed_nodes = self._changed_nodes, set()
        for key in {key for node in nodes for key in self._pods.groups_at(node)}:
            self._changed(key)
