"""Several members for a job's own etcd: the flags with which they find each other, their volumes, and the budget for
disruptions.

A member must return with its data: the others would count on writes that it has acknowledged and lost. So each has a
PersistentVolumeClaim, which the StatefulSet controller deletes together with the StatefulSet. The claims of each run
have names of their own: those of the last run may still be there, with its data.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from elasticjob_api import ElasticJob
from elasticjob_runtime.contract import DEFAULT_ETCD_PORT

from elasticjob_operator import certificates, names
from elasticjob_operator.resources.metadata import owned, selector_labels

PEER_PORT = 2380
"""Where members reach each other."""
DATA = "/var/lib/etcd/member"
"""Not the volume's root, in which file systems have a lost+found."""
AVOIDED = MappingProxyType({names.COMPONENT_ETCD: 100, names.COMPONENT_WORKER: 50})
"""Weights of the pods with which a member should not share a node."""
_MEMBER = "ETCD_MEMBER"
ENVIRONMENT: list[dict[str, Any]] = [{"name": _MEMBER, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
"""The kubelet replaces $(ETCD_MEMBER) in the flags by the pod's name."""


def flags(job: ElasticJob, run: int, *, tls: bool) -> list[str]:
    scheme = "https" if tls else "http"
    own = names.etcd_member_host(job.name, job.namespace, f"$({_MEMBER})")
    members = (names.etcd_member(job.name, index) for index in range(job.etcd_members))
    cluster = ",".join(
        f"{member}={scheme}://{names.etcd_member_host(job.name, job.namespace, member)}:{PEER_PORT}"
        for member in members
    )
    return [
        f"--name=$({_MEMBER})",
        f"--advertise-client-urls={scheme}://{own}:{DEFAULT_ETCD_PORT}",
        f"--listen-peer-urls={scheme}://0.0.0.0:{PEER_PORT}",
        f"--initial-advertise-peer-urls={scheme}://{own}:{PEER_PORT}",
        f"--initial-cluster={cluster}",
        f"--initial-cluster-token={names.run_id(job.uid, run)}",
        *(_peer_tls() if tls else []),
    ]


def _peer_tls() -> list[str]:
    folder = names.CERTIFICATES_PATH
    return [
        f"--peer-cert-file={folder}/{certificates.PEER_SERVER_CERTIFICATE_FILE}",
        f"--peer-key-file={folder}/{certificates.PEER_SERVER_KEY_FILE}",
        f"--peer-client-cert-file={folder}/{certificates.PEER_CLIENT_CERTIFICATE_FILE}",
        f"--peer-client-key-file={folder}/{certificates.PEER_CLIENT_KEY_FILE}",
        "--peer-client-cert-auth=true",
        f"--peer-trusted-ca-file={folder}/{certificates.PEER_CA_FILE}",
    ]


def volume_name(job: ElasticJob, run: int) -> str:
    return f"data-{job.uid[:8]}-{run}"


def storage(job: ElasticJob, run: int) -> dict[str, Any]:
    """Fields of the StatefulSet's spec."""
    etcd = job.spec.rendezvous.etcd
    wanted = etcd.storage if etcd is not None else None
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": wanted.size if wanted is not None else "1Gi"}},
    }
    if wanted is not None and wanted.storage_class_name is not None:
        spec["storageClassName"] = wanted.storage_class_name
    return {
        "volumeClaimTemplates": [{"metadata": {"name": volume_name(job, run)}, "spec": spec}],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
    }


def etcd_disruption_budget(job: ElasticJob) -> dict[str, Any]:
    """Node drains evict one member at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector_labels(job, names.COMPONENT_ETCD)}}
    name = names.etcd_name(job.name)
    return owned(job, "policy/v1", "PodDisruptionBudget", name, names.COMPONENT_ETCD, spec=spec)
