"""The CPU that single plans of one job of thousands of worker pods take: for so long the operator does nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import gc
import time
import uuid
from collections.abc import Callable

import orjson
from elasticjob_api import ElasticJob
from elasticjob_operator.kube.convert import node_of, pod_of
from elasticjob_operator.node_state import Node
from elasticjob_operator.planning import (
    CreateObject,
    CreatePod,
    DryRunCreate,
    Plan,
    PublishSpec,
    events_of_actions,
    plan,
)
from elasticjob_operator.policies.node_loss import count_nodes
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import (
    Admission,
    Connectivity,
    ContainerEnd,
    JobState,
    Kind,
    OwnedObject,
    Pod,
    PodPhase,
    RendezvousView,
)
from elasticjob_runtime.contract import PlanReason, PlanValue

from benchmarks.operator.fake_cluster import Json
from benchmarks.operator.scale import TEMPLATE

REPETITIONS = 5
PODS_PER_NODE = 8
LONG_AGO = "2026-01-01T00:00:00Z"
SETTINGS = Settings(endpoint="etcd:2379", runtime_image="registry.example/runtime:1")


def run(pods: int) -> dict[str, float]:
    """Each figure is the shortest of several: other work on the machine only adds to it."""
    job, state, created = _start(pods)
    figures = {"created: plan, ms": _milliseconds(lambda: plan(job, state, SETTINGS, _now()))}
    figures["created: Events, ms"] = _milliseconds(lambda: events_of_actions(created.actions))
    job, state = _running(job, state, created, pods)
    lost = next(pod.node for pod in state.pods if pod.index == pods // 2)
    half = job.with_replicas(pods // 2)
    cases = {
        "at rest": (job, state),
        "a pod has failed": (job, dataclasses.replace(state, pods=tuple(map(_failed(pods // 2), state.pods)))),
        "a node is lost": (
            job,
            dataclasses.replace(
                state, nodes={name: node for name, node in (state.nodes or {}).items() if name != lost}
            ),
        ),
        "all are starting": (job, dataclasses.replace(state, pods=tuple(map(_pending, state.pods)))),
        "half of them leave": (half, state),
    }
    for name, (of_job, observed) in cases.items():
        work = functools.partial(plan, of_job, observed, SETTINGS)
        figures[f"{name}: plan, ms"] = _milliseconds(lambda work=work: work(_now()))  # type: ignore[misc]
    return figures


def _milliseconds(work: Callable[[], object]) -> float:
    def once() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    gc.collect()
    gc.freeze()
    return 1e3 * min(once() for _ in range(REPETITIONS))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _start(pods: int) -> tuple[ElasticJob, JobState, Plan]:
    """A job, what is observed before its pods are created, and the plan that creates them."""
    sizes = {"replicas": pods, "minReplicas": 1, "maxReplicas": pods, "template": TEMPLATE}
    metadata = {"name": "big", "namespace": "ml", "uid": str(uuid.uuid4()), "generation": 1, "resourceVersion": "1"}
    rendezvous = {"type": "External", "endpoint": "etcd:2379"}
    job = ElasticJob.parse({"metadata": metadata, "spec": {"workers": sizes, "rendezvous": rendezvous}})
    nodes = {name: _node(name) for name in (f"node-{number:05}" for number in range(pods // PODS_PER_NODE + 1))}
    view = RendezvousView(connectivity=Connectivity.REACHABLE, answered_at=_now())
    state = JobState(nodes=nodes, node_counts=count_nodes(nodes), rendezvous=view)
    while True:
        found = plan(job, state, SETTINGS, _now())
        if any(isinstance(action, CreatePod) for action in found.actions):
            return job, state, found
        job, state = job.model_copy(update={"status": found.status}), _applied(job, state, found)


def _applied(job: ElasticJob, state: JobState, found: Plan) -> JobState:
    objects, admission, view = dict(state.objects), state.admission, state.rendezvous
    for action in found.actions:
        match action:
            case DryRunCreate():
                admission = Admission(template_hash=action.template_hash, image_volume=action.image_volume, at=_now())
            case CreateObject():
                known = _owned(job, action.kind, action.body["metadata"]["name"], orjson.dumps(action.body))
                objects[action.kind, known.name] = known
            case PublishSpec():
                view = dataclasses.replace(view, spec=action.spec)
    return dataclasses.replace(state, objects=objects, admission=admission, rendezvous=view)


def _owned(job: ElasticJob, kind: Kind, name: str, body: bytes) -> OwnedObject:
    return OwnedObject(kind=kind, name=name, uid=name, owner_uid=job.uid, terminating=False, json=body)


def _running(job: ElasticJob, state: JobState, created: Plan, count: int) -> tuple[ElasticJob, JobState]:
    """Once all train, and nothing is left to do but what no etcd and API server does here."""
    pods = tuple(_pod(action) for action in created.actions if isinstance(action, CreatePod))
    value = PlanValue(
        round=1,
        attempt="00000001.x",
        size=count,
        world_size=count,
        nproc=1,
        master_addr="10.0.0.1",
        master_port=40001,
        leader=pods[0].name,
        restart_count=0,
        reason=PlanReason.START,
        created_at=time.time() - 60,
    )
    run_id = created.status.rendezvous.id if created.status.rendezvous is not None else ""
    job = job.model_copy(update={"status": created.status})
    state = _applied(job, state, created)
    state = dataclasses.replace(
        state, pods=pods, rendezvous=dataclasses.replace(state.rendezvous, run_id=run_id, plan=value)
    )
    for _ in range(3):
        found = plan(job, state, SETTINGS, _now())
        job, state = job.model_copy(update={"status": found.status}), _applied(job, state, found)
    return job, state


def _pod(action: CreatePod) -> Pod:
    body: Json = orjson.loads(orjson.dumps(action.body))
    body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": LONG_AGO}
    body["spec"]["nodeName"] = f"node-{action.index // PODS_PER_NODE:05}"
    conditions = [
        {"type": type_, "status": "True", "lastTransitionTime": LONG_AGO} for type_ in ("PodScheduled", "Ready")
    ]
    container = {"name": "trainer", "ready": True, "state": {"running": {"startedAt": LONG_AGO}}}
    return pod_of({**body, "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}})


def _node(name: str) -> Node:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}
    versions = {"kubeletVersion": "v1.35.0", "containerRuntimeVersion": "containerd://2.1.0"}
    metadata = {"name": name, "creationTimestamp": LONG_AGO}
    return node_of({"metadata": metadata, "status": {"conditions": [ready], "nodeInfo": versions}}, None, _now())


def _failed(index: int) -> Callable[[Pod], Pod]:
    end = ContainerEnd(exit_code=1, reason="Error", finished_at=_now())
    return lambda pod: (
        dataclasses.replace(pod, phase=PodPhase.FAILED, ready=False, end=end) if pod.index == index else pod
    )


def _pending(pod: Pod) -> Pod:
    return dataclasses.replace(pod, phase=PodPhase.PENDING, ready=False, up=False, node="", scheduled_at=None)
