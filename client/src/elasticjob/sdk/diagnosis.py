"""Reads what `elasticjob doctor` judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from elasticjob.cluster.objects import Cluster
from elasticjob.decisions.doctor import RIGHTS, Finding, Observed, findings, is_gpu
from elasticjob.decisions.queues import has_default_etcd, requested
from elasticjob.errors import ElasticJobError, NotFoundError
from elasticjob.state import job_state, worker_states
from elasticjob.version import version

T = TypeVar("T")


def diagnose(cluster: Cluster, name: str | None) -> list[Finding]:
    """`name`: a job to look at too. Raises NotFoundError if there is none of that name."""
    return findings(_observe(cluster, name), cluster.api.now())


def _observe(cluster: Cluster, name: str | None) -> Observed:
    server, namespace, own = cluster.api.target.server, cluster.namespace, version()
    answer = _try(cluster.version)
    if isinstance(answer, ElasticJobError):
        return Observed(server, namespace, own, answer)
    crd = _try(cluster.crd)
    body = cluster.job(name) if name else None
    workers = _try(lambda: cluster.workers(name)) if name else []
    operators = _try(cluster.operators)
    shared = not isinstance(operators, ElasticJobError) and has_default_etcd(operators)
    return Observed(
        server=server,
        namespace=namespace,
        client_version=own,
        version=answer,
        skew=cluster.api.skew,
        crd=None if isinstance(crd, NotFoundError) else crd,
        operators=operators,
        nodes=_try(cluster.nodes),
        rights={what: cluster.may(verb, resource, group) for verb, resource, group, what in RIGHTS},
        job=job_state(body) if body else None,
        gpus=_gpus_of(body) if body else {},
        queue=_queue_of(cluster, body) if body else None,
        requested=requested(body, job_state(body).least, shared_etcd=shared) if body else {},
        workers=[] if isinstance(workers, ElasticJobError) else worker_states(workers),
    )


def _queue_of(cluster: Cluster, body: Mapping[str, Any]) -> Mapping[str, Any] | ElasticJobError | None:
    """The ClusterQueue that admits the job. None: it is in no queue."""
    queue = job_state(body).queue
    return _try(lambda: cluster.cluster_queue(queue)) if queue else None


def _try(read: Callable[[], T]) -> T | ElasticJobError:
    try:
        return read()
    except ElasticJobError as error:
        return error


def _gpus_of(body: Mapping[str, Any]) -> dict[str, int]:
    """GPU resource -> how many a worker pod asks for, over its containers."""
    found: dict[str, int] = {}
    for container in body["spec"]["workers"]["template"].get("spec", {}).get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        for resource, amount in limits.items():
            if is_gpu(resource) and str(amount).isdigit():
                found[resource] = found.get(resource, 0) + int(amount)
    return found
