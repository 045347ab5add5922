"""The Services of a job."""

from __future__ import annotations

from typing import Any

from elasticjob_api import ElasticJob
from elasticjob_runtime.contract import DEFAULT_ETCD_PORT

from elasticjob_operator import names
from elasticjob_operator.resources.metadata import owned, selector_labels


def workers_service(job: ElasticJob) -> dict[str, Any]:
    """One headless Service for all worker pods: `digits-worker-0.digits` resolves even before the pod is ready. Pods of
    a deleted job of the same name, and pods that have been replaced, may not have ended: it selects neither."""
    selector = {**selector_labels(job, names.COMPONENT_WORKER), names.LABEL_JOB_UID: job.uid}
    return _headless(job, names.workers_service(job.name), names.COMPONENT_WORKER, selector)


def etcd_service(job: ElasticJob) -> dict[str, Any]:
    """The address of the job's own etcd. It has a cluster IP so that the name resolves from the start, and to the same
    address for the job's lifetime: agents that start before etcd, or outlive its pod, find it without another lookup.
    The name of a headless Service without ready pods does not resolve, and resolvers cache that.

    A single member is reached as soon as it listens; of several, those that are ready."""
    port = {
        "name": names.ETCD_CLIENT_PORT_NAME,
        "port": DEFAULT_ETCD_PORT,
        "targetPort": names.ETCD_CLIENT_PORT_NAME,
        "protocol": "TCP",
    }
    spec = {
        "type": "ClusterIP",
        **({"publishNotReadyAddresses": True} if job.etcd_members == 1 else {}),
        "selector": selector_labels(job, names.COMPONENT_ETCD),
        "ports": [port],
    }
    return owned(job, "v1", "Service", names.etcd_name(job.name), names.COMPONENT_ETCD, spec=spec)


def etcd_peers_service(job: ElasticJob) -> dict[str, Any]:
    """Gives each of several etcd members a name, by which the others find it before it is ready."""
    selector = selector_labels(job, names.COMPONENT_ETCD)
    return _headless(job, names.etcd_peers(job.name), names.COMPONENT_ETCD, selector)


def _headless(job: ElasticJob, name: str, component: str, selector: dict[str, str]) -> dict[str, Any]:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return owned(job, "v1", "Service", name, component, spec=spec)
