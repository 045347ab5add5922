"""The Secrets of a run, before their content is made: the certificates of the job's own etcd, and the credentials for
the shared etcd."""

from __future__ import annotations

from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator import names
from elasticjob_operator.resources.metadata import owned


def certificates_secret(job: ElasticJob, name: str) -> dict[str, Any]:
    """Without its data. One Secret for server and worker pods, so that they cannot be of two different attempts: pods
    mount only the files that they need. Immutable, so that kubelets do not watch it."""
    return owned(job, "v1", "Secret", name, names.COMPONENT_ETCD, type="Opaque", immutable=True)


def credentials_secret(job: ElasticJob, name: str) -> dict[str, Any]:
    """Without its data. Not immutable: if its user has to be created again, running pods get the new password."""
    return owned(job, "v1", "Secret", name, names.COMPONENT_WORKER, type="Opaque")


def server_names(job: ElasticJob) -> tuple[str, ...]:
    """DNS names of the job's own etcd: its Service, and its pods."""
    host = names.etcd_host(job.name, job.namespace)
    return host, f"*.{host}", *peer_names(job)


def peer_names(job: ElasticJob) -> tuple[str, ...]:
    """DNS names by which the members of the job's own etcd know each other; empty: it has one."""
    return (names.etcd_member_host(job.name, job.namespace, "*"),) if job.etcd_members > 1 else ()
