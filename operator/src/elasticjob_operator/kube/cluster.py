"""The cluster as the reconciler sees it: observes the objects of a job, and executes the actions of a plan."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator import names
from elasticjob_operator.kube.adoption import Adoption
from elasticjob_operator.kube.api_resources import (
    AUTOSCALERS,
    NETWORK_POLICIES,
    NODES,
    OWNED,
    POD_GROUPS,
    PODS,
    WORKLOADS,
    ApiResource,
)
from elasticjob_operator.kube.apply_result import ApplyResult
from elasticjob_operator.kube.cache import Json, ObjectCache
from elasticjob_operator.kube.client import ApiError, KubeClient, NotFoundError
from elasticjob_operator.kube.convert import job_of, object_of, pod_of
from elasticjob_operator.kube.etcd_secrets import EtcdSecrets
from elasticjob_operator.kube.explanations import Explanations
from elasticjob_operator.kube.informer import Informer
from elasticjob_operator.kube.jobs import StatusWrite, read_job, write_progress, write_status
from elasticjob_operator.kube.kueue import Kueue
from elasticjob_operator.kube.nodes import Heartbeats, NodeCache
from elasticjob_operator.kube.pod_groups import PodGroups
from elasticjob_operator.kube.secret_writer import MakeCertificates
from elasticjob_operator.kube.writer import Writer
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import Action, CreateObject, CreatePod, ReadHeartbeat
from elasticjob_operator.settings import KueueMode, Settings
from elasticjob_operator.state import Explanation, JobState, Kind, OwnedObject, Pod

log = logging.getLogger(__name__)

NODES_SECONDS = 0.05
"""How long changes of nodes are collected, s."""


class Cluster:
    """`changed(key)` is called when an object of that job changes, `changed_all()` when what all queued jobs depend on
    does."""

    def __init__(
        self,
        api: KubeClient,
        settings: Settings,
        changed: Callable[[NamespacedName], None],
        make_certificates: MakeCertificates,
        etcd_secrets: EtcdSecrets,
        changed_all: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = api
        self._changed = changed
        self._namespaces = settings.namespaces or ("",)
        self._pods: ObjectCache[Pod] = ObjectCache(pod_of, job_of, changed, index=lambda pod: pod.node)
        self._objects: dict[Kind, ObjectCache[OwnedObject]] = {
            kind: ObjectCache(object_of(kind), job_of, changed) for kind in OWNED
        }
        self._nodes = NodeCache(self._on_node, topology=settings.topology_labels)
        self._changed_nodes: set[str] = set()
        self._heartbeats = Heartbeats(api)
        self._explanations = Explanations(api)
        self._informers: dict[tuple[str, str], Informer] = {}
        self._watch(PODS, self._pods, Adoption(api, PODS, self._pods).may_exist)
        for kind, resource in OWNED.items():
            self._watch(resource, self._objects[kind])
        self._node_informer = Informer(api, NODES, self._nodes, optional=True)
        self.pod_groups = PodGroups(api, self._namespaces, changed, changed_all)
        self.kueue = Kueue(api, self._namespaces, changed, changed_all) if settings.kueue is KueueMode.AUTO else None
        """None: queues are left to others."""
        self._writer = Writer(api, self._on_written, make_certificates, etcd_secrets)

    def _watch(
        self, resource: ApiResource, store: ObjectCache[Any], may_exist: Callable[[Json], bool] = lambda _: False
    ) -> None:
        for namespace in self._namespaces:
            # Jobs work without these, and an older chart grants no access to them.
            optional = resource in (AUTOSCALERS, NETWORK_POLICIES)
            informer = Informer(
                self._client,
                resource,
                store,
                namespace=namespace,
                selector=names.LABEL_JOB,
                optional=optional,
                may_exist=may_exist,
            )
            self._informers[resource.plural, namespace] = informer

    @property
    def informers(self) -> tuple[Informer, ...]:
        return (*self._informers.values(), self._node_informer)

    @property
    def optional(self) -> list[PodGroups | Kueue]:
        """What not every cluster has."""
        return [self.pod_groups, *([self.kueue] if self.kueue is not None else [])]

    async def synced(self) -> None:
        """Returns when all informers have synced."""
        await asyncio.gather(*(informer.synced.wait() for informer in self.informers))

    def observe(self, key: NamespacedName, uid: str) -> JobState:
        """Without the rendezvous, which is in etcd."""
        pods = list(self._pods.of(key))
        objects = [item for store in self._objects.values() for item in store.of(key)]
        objects += self.pod_groups.of(key)
        return JobState(
            pods=tuple(pod for pod in pods if pod.job_uid == uid),
            leftovers=tuple(pod for pod in pods if pod.job_uid != uid),
            objects={(item.kind, item.name): item for item in objects if item.owner_uid == uid},
            foreign=tuple(item for item in objects if item.owner_uid != uid),
            nodes=None if self._node_informer.forbidden else self._nodes.by_name,
            nodes_watched_since=self._node_informer.watching_since,
            heartbeats=self._heartbeats.by_node,
            node_counts=self._nodes.node_counts,
            served=self.pod_groups.served,
            queue=self.kueue.view(key, uid) if self.kueue is not None else None,
        )

    def pod_count(self, key: NamespacedName) -> int:
        return self._pods.count(key)

    def has_active_pods(self, key: NamespacedName, uid: str) -> bool:
        return any(pod.job_uid == uid and not pod.ended for pod in self._pods.of(key))

    async def apply(self, job: ElasticJob, actions: Iterable[Action], *, rejected: bool = False) -> ApplyResult:
        """Executes the actions concurrently. `rejected`: the last create of this job was rejected. A temporary failure
        is returned in `failure`."""
        actions = list(actions)
        if any(pod.terminating for pod in self._pods.of((job.namespace, job.name))) and not await self._exists(job):
            actions = [action for action in actions if not isinstance(action, CreatePod | CreateObject)]
        nodes = {action.node for action in actions if isinstance(action, ReadHeartbeat)}
        read = await asyncio.gather(*(self._heartbeats.read(node) for node in nodes), return_exceptions=True)
        applied = await self._writer.apply(
            job, [other for other in actions if not isinstance(other, ReadHeartbeat)], rejected=rejected
        )
        for failure in (outcome for outcome in read if isinstance(outcome, BaseException)):
            if not isinstance(failure, ApiError | ConnectionError):
                raise failure
            applied = dataclasses.replace(applied, failure=failure)
        return applied

    async def _exists(self, job: ElasticJob) -> bool:
        """Read before pods are replaced: the garbage collector may delete the pods of a deleted job before the operator
        sees that it is deleted."""
        try:
            metadata = (await read_job(self._client, (job.namespace, job.name)))["metadata"]
        except NotFoundError:
            return False
        return metadata["uid"] == job.uid and "deletionTimestamp" not in metadata

    async def write_status(self, key: NamespacedName, uid: str, version: str, status: Json) -> StatusWrite:
        """Not written where the job has changed since that resourceVersion. Raises ApiError or ConnectionError."""
        return await write_status(self._client, key, uid, version, status)

    async def write_progress(self, body: Json) -> None:
        """Raises ApiError or ConnectionError."""
        await write_progress(self._client, body)

    async def explain(self, namespace: str, kind: str, name: str, before: Explanation | None) -> Explanation:
        """What the Events of that object say. `before`: what they said when last read."""
        return await self._explanations.read(namespace, kind, name, before)

    def _on_written(self, resource: ApiResource, body: Json) -> None:
        """Stores the response to our own write, so that the next plan sees it."""
        if resource is WORKLOADS:
            if self.kueue is not None:
                self.kueue.on_written(resource, body)
            return
        if resource in POD_GROUPS.values():
            self.pod_groups.on_written(resource, body)
            return
        namespace = body["metadata"].get("namespace", "")
        informer = self._informers.get((resource.plural, namespace)) or self._informers.get((resource.plural, ""))
        if informer is not None:
            informer.on_written(body)

    def _on_node(self, node: NamespacedName) -> None:
        """Requeues the jobs with pods on a node that was added, deleted or changed its health. Nodes often change
        together, and a job with pods on several of them is requeued once."""
        if not self._changed_nodes:
            asyncio.get_running_loop().call_later(NODES_SECONDS, self._requeue_jobs_of_nodes)
        self._changed_nodes.add(node[1])

    def _requeue_jobs_of_nodes(self) -> None:
        nodes, self._changed_nodes = self._changed_nodes, set()
        for key in {key for node in nodes for key in self._pods.groups_at(node)}:
            self._changed(key)
