"""The Workloads of a job as they are created: one base, and surplus."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator import names
from elasticjob_operator.queue_state import WorkloadPart
from elasticjob_operator.resources.metadata import owned

GROUP = "kueue.x-k8s.io"
API_VERSION = f"{GROUP}/v1beta2"
QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"
PREBUILT = f"{GROUP}/prebuilt-workload-name"
"""Label or annotation of a job: MultiKueue has created its Workload."""
MULTIKUEUE = f"{GROUP}/multikueue"
"""spec.managedBy of a job that runs in another cluster."""
JOB_UID_LABEL = f"{GROUP}/job-uid"
WORKERS, ETCD = "workers", "etcd"
"""Names of podSets."""
_TOPOLOGY = {
    f"{GROUP}/podset-required-topology": "required",
    f"{GROUP}/podset-preferred-topology": "preferred",
}
"""Annotations of the template, and fields of a podSet's topologyRequest."""
UNCONSTRAINED = f"{GROUP}/podset-unconstrained-topology"


def queue_of(job: ElasticJob) -> str:
    """The LocalQueue that the job names. Empty: none."""
    return job.metadata.labels.get(QUEUE_LABEL, "")


def prebuilt_of(job: ElasticJob) -> str:
    """The Workload that the job names as its base. Empty: it has one of its own."""
    return job.metadata.labels.get(PREBUILT) or job.metadata.annotations.get(PREBUILT, "")


def workload(
    job: ElasticJob,
    part: WorkloadPart,
    *,
    number: int = 0,
    count: int,
    template_hash: str,
    priority: Mapping[str, Any],
    etcd: Mapping[str, Any] | None = None,
    node_selector: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A Workload for `count` worker pods. `number`: of a surplus; `priority`: fields of spec; `etcd`: the StatefulSet
    of the job's own etcd; `node_selector`: in addition to the template's."""
    name = names.base_workload(job.name) if part is WorkloadPart.BASE else names.surplus_workload(job.name, number)
    spec: dict[str, Any] = {
        "queueName": queue_of(job),
        "active": True,
        **priority,
        "podSets": pod_sets(job, count, etcd, node_selector),
    }
    body = owned(job, API_VERSION, "Workload", name, names.COMPONENT_WORKLOAD, spec=spec)
    body["metadata"]["labels"] |= {
        JOB_UID_LABEL: job.uid,
        names.LABEL_WORKLOAD_PART: part.value,
        names.LABEL_TEMPLATE: template_hash,
    }
    return body


def pod_sets(
    job: ElasticJob,
    count: int,
    etcd: Mapping[str, Any] | None = None,
    node_selector: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """As of `workload`."""
    return [worker_pod_set(job, count, node_selector or {}), *([_etcd_pod_set(etcd)] if etcd else [])]


def worker_pod_set(job: ElasticJob, count: int, node_selector: Mapping[str, str]) -> dict[str, Any]:
    """The user's template, which has everything that quota and flavors depend on."""
    template: dict[str, Any] = copy.deepcopy(job.spec.workers.template)
    metadata = template.get("metadata") or {}
    spec = {**(template.get("spec") or {}), "restartPolicy": "Never"}
    if node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **node_selector}
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {
        "name": WORKERS,
        "count": count,
        "template": {"metadata": kept, "spec": spec},
        **_topology_request(metadata.get("annotations") or {}),
    }


def _topology_request(annotations: Mapping[str, str]) -> dict[str, Any]:
    for annotation, field in _TOPOLOGY.items():
        if annotation in annotations:
            return {"topologyRequest": {field: annotations[annotation]}}
    return {"topologyRequest": {"unconstrained": True}} if annotations.get(UNCONSTRAINED) == "true" else {}


def asks_for_topology(annotations: Mapping[str, str]) -> bool:
    return any(name in annotations for name in (*_TOPOLOGY, UNCONSTRAINED))


def _etcd_pod_set(stateful_set: Mapping[str, Any]) -> dict[str, Any]:
    """So that the quota is honest. Its volumes and probes do not count."""
    spec = stateful_set["spec"]["template"]["spec"]
    kept = {key: spec[key] for key in ("nodeSelector", "tolerations", "priorityClassName") if spec.get(key)}
    containers = [{key: container[key] for key in ("name", "image", "resources")} for container in spec["containers"]]
    return {
        "name": ETCD,
        "count": stateful_set["spec"]["replicas"],
        "template": {"spec": {**kept, "containers": containers, "restartPolicy": "Always"}},
    }
