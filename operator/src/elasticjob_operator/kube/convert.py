"""Converts API objects to what decisions need. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from sys import intern
from typing import Any

from elasticjob_api import KIND
from elasticjob_runtime.contract import Env

from elasticjob_operator import names
from elasticjob_operator.kube.cache import Json, to_bytes
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.node_state import Node, NodeHealth
from elasticjob_operator.policies.injection import mounts_images
from elasticjob_operator.state import Blocked, ContainerEnd, Disruption, Kind, OwnedObject, Pod, PodPhase

_HEALTH = {"True": NodeHealth.READY, "False": NodeHealth.NOT_READY, "Unknown": NodeHealth.SILENT}
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_LONGEST_NUMBER = 7
"""Digits of a numeric label. Labels are untrusted: anyone who can create pods can set them."""
_MOST_CLAIMS = 16
_MOST_KEPT = 128 * 1024
"""Bytes of an object that are kept. Ours have a few thousand; anyone may create others with our labels."""
_ORDINARY_WAITING = frozenset({"ContainerCreating", "PodInitializing", ""})


def job_of(body: Json) -> NamespacedName | None:
    """The job that an object belongs to."""
    metadata = body["metadata"]
    job = (metadata.get("labels") or {}).get(names.LABEL_JOB)
    return (intern(metadata.get("namespace", "")), intern(job)) if job else None


def is_of_job(metadata: Json) -> bool:
    """Whether an ElasticJob is the controller of that object."""
    owners = metadata.get("ownerReferences") or []
    return any(owner.get("controller") and owner.get("kind") == KIND for owner in owners)


def pod_of(body: Json) -> Pod:
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    phase, ready = PodPhase(status.get("phase") or PodPhase.PENDING), _is_ready(spec, status, conditions)
    # Labels may be removed by hand, while what the pod does does not change.
    component = intern(labels.get(names.LABEL_COMPONENT) or (names.COMPONENT_WORKER if is_of_job(metadata) else ""))
    index = _number(labels.get(names.LABEL_INDEX), -1)
    if component == names.COMPONENT_WORKER and index < 0:
        index = names.index_of(metadata["name"])
    # A copy of a worker pod (`kubectl debug --copy-to`) has its labels, but no owner. etcd's owner is its StatefulSet.
    job_uid = _owner_uid(metadata) if component == names.COMPONENT_WORKER else labels.get(names.LABEL_JOB_UID, "")
    run_id = _run_id(spec) if component == names.COMPONENT_WORKER else ""
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        # Interned: the same strings occur in thousands of pods.
        job_uid=intern(job_uid),
        component=component,
        index=index,
        run=_number(labels.get(names.LABEL_RUN), names.run_of(run_id, job_uid) if run_id else 0),
        attempt=_number(labels.get(names.LABEL_ATTEMPT), names.attempt_of(run_id)),
        template_hash=intern(labels.get(names.LABEL_TEMPLATE, "")),
        workload=intern(labels.get(names.LABEL_WORKLOAD, "")),
        in_dns=names.LABEL_JOB_UID in labels,
        phase=phase,
        ready=ready,
        up=_is_up(spec, status, conditions),
        node=intern(spec.get("nodeName") or ""),
        created_at=_time(metadata["creationTimestamp"]),
        scheduled_at=_scheduled_at(conditions),
        deletion_timestamp=_time_at(metadata, "deletionTimestamp"),
        deletion_grace_seconds=metadata.get("deletionGracePeriodSeconds") or 0,
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        end=_end_of((_training_status(spec, status).get("state") or {}).get("terminated")),
        blocked=_blocked(spec, status, conditions)
        if phase is PodPhase.PENDING
        else _not_ready(spec, status, conditions)
        if phase is PodPhase.RUNNING and component == names.COMPONENT_ETCD and not ready
        else None,
        injected=any(volume.get("name") == names.RUNTIME_VOLUME for volume in spec.get("volumes") or []),
        init_end=_init_end(spec, status) if phase is PodPhase.FAILED else None,
        disruption=_disruption(conditions),
    )


def _run_id(spec: Json) -> str:
    """PET_RDZV_ID of a worker pod; empty: it has none."""
    variables = (variable for container in spec.get("containers") or [] for variable in container.get("env") or [])
    return next((variable.get("value") or "" for variable in variables if variable.get("name") == Env.RDZV_ID), "")


def node_of(body: Json, before: Node | None, now: datetime.datetime, topology: Sequence[str] = ()) -> Node:
    """`before`: the node as last seen; `now`: the current time; `topology`: labels, from the widest domain down."""
    conditions = {condition["type"]: condition for condition in (body.get("status") or {}).get("conditions") or []}
    ready = conditions.get("Ready", {})
    health = _HEALTH.get(ready.get("status", ""), NodeHealth.NOT_READY)
    same = before is not None and before.health is health
    recovered = before is not None and not before.ready and health is NodeHealth.READY
    taints = (body.get("spec") or {}).get("taints") or []
    info = (body.get("status") or {}).get("nodeInfo") or {}
    labels = body["metadata"].get("labels") or {}
    return Node(
        name=body["metadata"]["name"],
        health=health,
        since=_time(ready.get("lastTransitionTime") or body["metadata"]["creationTimestamp"]),
        seen_at=before.seen_at if before is not None and same else now,
        recovered_at=now if recovered else before.recovered_at if before is not None else None,
        out_of_service=any(taint.get("key") == _OUT_OF_SERVICE for taint in taints),
        mounts_images=mounts_images(info.get("kubeletVersion") or "", info.get("containerRuntimeVersion") or ""),
        location="/".join(labels[label] for label in topology if labels.get(label)),
    )


def object_of(kind: Kind) -> Callable[[Json], OwnedObject]:
    def convert(body: Json) -> OwnedObject:
        metadata = body["metadata"]
        return OwnedObject(
            kind=kind,
            name=metadata["name"],
            uid=metadata["uid"],
            owner_uid=_owner_uid(metadata),
            terminating=bool(metadata.get("deletionTimestamp")),
            created_at=_time_at(metadata, "creationTimestamp"),
            json=_kept(metadata, body.get("spec")),
        )

    return convert


def _kept(metadata: Json, spec: Json | None) -> bytes:
    """Without fields that change often and are not read here. Of an object that is too large, the names of its fields:
    all of them differ from the desired state."""
    applied = (metadata.get("annotations") or {}).get(names.ANNOTATION_APPLIED)
    annotations = {names.ANNOTATION_APPLIED: str(applied)} if applied else {}
    ours = {key: metadata.get(key) for key in ("name", "namespace", "labels", "ownerReferences")}
    kept = to_bytes({"metadata": {**ours, "annotations": annotations}, "spec": spec})
    return kept if len(kept) <= _MOST_KEPT else to_bytes({"metadata": {}, "spec": dict.fromkeys(spec or {})})


def _owner_uid(metadata: Json) -> str:
    return next(
        (reference["uid"] for reference in metadata.get("ownerReferences") or [] if reference.get("controller")), ""
    )


def _is_ready(spec: Json, status: Json, conditions: dict[str, Json]) -> bool:
    """Another container that exits or is not ready changes nothing."""
    if conditions.get("Ready", {}).get("status") == "True":
        return True
    return _only_containers_are_not_ready(conditions) and bool(_training_status(spec, status).get("ready"))


def _is_up(spec: Json, status: Json, conditions: dict[str, Json]) -> bool:
    running = (_training_status(spec, status).get("state") or {}).get("running")
    return running is not None and _only_containers_are_not_ready(conditions)


def _only_containers_are_not_ready(conditions: dict[str, Json]) -> bool:
    """False where the node is silent, so that the state of containers is old, or a readiness gate is closed."""
    return bool(conditions.get("Ready", {}).get("reason") == "ContainersNotReady")


def _training_status(spec: Json, status: Json) -> Json:
    name = _training_container(spec)
    return next((container for container in status.get("containerStatuses") or [] if container.get("name") == name), {})


def _init_end(spec: Json, status: Json) -> ContainerEnd | None:
    """How the init container that made the pod fail ended. Sidecars are init containers, too: how they end does not
    matter."""
    for container in status.get("initContainerStatuses") or []:
        end = _end_of((container.get("state") or {}).get("terminated"))
        if end is not None and end.exit_code and container.get("name") not in _sidecars(spec):
            return dataclasses.replace(end, container=str(container.get("name")))
    return None


def _runtime_image(spec: Json) -> str:
    """The image that is mounted as the runtime; empty: none is."""
    volumes = [volume for volume in spec.get("volumes") or [] if volume.get("name") == names.RUNTIME_VOLUME]
    return str((volumes[0].get("image") or {}).get("reference") or "") if volumes else ""


def _end_of(ended: Json | None) -> ContainerEnd | None:
    if not ended:
        return None
    return ContainerEnd(
        exit_code=ended.get("exitCode", 0),
        reason=ended.get("reason") or "",
        message=ended.get("message") or "",
        started_at=_time_at(ended, "startedAt"),
        finished_at=_time_at(ended, "finishedAt"),
    )


def _training_container(spec: Json) -> str:
    """The container that has our environment variables."""
    containers: list[dict[str, Any]] = spec.get("containers") or [{}]
    for container in containers:
        if any(variable.get("name") == Env.MEMBER_ID for variable in container.get("env") or []):
            return str(container.get("name"))
    return str(containers[0].get("name", ""))


def _blocked(spec: Json, status: Json, conditions: dict[str, Json]) -> Blocked | None:
    runtime_image = _runtime_image(spec)
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if (reason := waiting.get("reason") or "") not in _ORDINARY_WAITING:
            text = waiting.get("message") or ""
            # The kubelet reports the image of a volume at the containers that mount it.
            runtime = container.get("name") == names.RUNTIME_VOLUME or bool(runtime_image and runtime_image in text)
            return Blocked(reason=reason, message=text, runtime=runtime)
    scheduled = conditions.get("PodScheduled", {})
    sources = [volume.get("persistentVolumeClaim") or {} for volume in spec.get("volumes") or []]
    claims = tuple(str(source["claimName"]) for source in sources if source.get("claimName"))[:_MOST_CLAIMS]
    if scheduled.get("status") == "False":
        gates = ", ".join(str(gate.get("name")) for gate in spec.get("schedulingGates") or [])
        text = scheduled.get("message") or ""
        return Blocked(
            reason=scheduled.get("reason") or "Unschedulable",
            message=f"{text}: {gates}" if gates else text,
            claims=claims,
        )
    if claims and not scheduled and not spec.get("nodeName"):
        return Blocked(reason="", claims=claims)
    return _running_init_container(spec, status)


def _not_ready(spec: Json, status: Json, conditions: dict[str, Json]) -> Blocked:
    """Of a pod whose containers are restarted."""
    found = _blocked(spec, status, conditions) or Blocked(reason="it is not ready")
    return dataclasses.replace(found, since=_time_at(conditions.get("Ready", {}), "lastTransitionTime"))


def _running_init_container(spec: Json, status: Json) -> Blocked | None:
    for container in status.get("initContainerStatuses") or []:
        running = (container.get("state") or {}).get("running")
        if running is not None and container.get("name") not in _sidecars(spec):
            return Blocked(
                reason=f"init container {container.get('name')} is running", since=_time_at(running, "startedAt")
            )
    return None


def _sidecars(spec: Json) -> set[str]:
    """Init containers that run as long as the pod."""
    return {
        str(container.get("name"))
        for container in spec.get("initContainers") or []
        if container.get("restartPolicy") == "Always"
    }


def _scheduled_at(conditions: dict[str, Json]) -> datetime.datetime | None:
    scheduled = conditions.get("PodScheduled", {})
    return _time_at(scheduled, "lastTransitionTime") if scheduled.get("status") == "True" else None


def _disruption(conditions: dict[str, Json]) -> Disruption | None:
    target = conditions.get("DisruptionTarget", {})
    if target.get("status") != "True":
        return None
    return Disruption(reason=target.get("reason") or "Disrupted", message=target.get("message") or "")


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER else default


def _time_at(value: Json, key: str) -> datetime.datetime | None:
    return _time(value[key]) if value.get(key) else None


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
