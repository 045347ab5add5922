"""The StatefulSet of a job's own etcd: a single member without persistent storage. Training survives its loss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from elasticjob_api import ElasticJob
from elasticjob_runtime.contract import DEFAULT_ETCD_PORT

from elasticjob_operator import names
from elasticjob_operator.resources.metadata import labels, metadata, selector_labels

_DATA = "/var/lib/etcd"
PLACEMENT = ("tolerations", "nodeSelector", "priorityClassName", "imagePullSecrets")
"""Pod spec fields that `spec.rendezvous.etcd` and the operator's settings can set."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_USER = 65532
"""Any non-root user works: etcd writes only to its volume, which fsGroup makes writable."""

_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
"""Requests fit an idle etcd; the limit only stops a runaway one. Overridden by `spec.rendezvous.etcd.resources`."""


def etcd_stateful_set(
    job: ElasticJob, image: str, defaults: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """`image`, `defaults`: etcd image and pod spec fields to use if the job does not set them."""
    body = _stateful_set(job, image, defaults)
    body["metadata"]["annotations"] = {names.ANNOTATION_APPLIED: hash_of(body["spec"])}
    return body


def hash_of(spec: Mapping[str, Any]) -> str:
    """Hash of a spec as built by the operator, before the API server adds defaults."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def _stateful_set(job: ElasticJob, image: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    name = names.etcd_name(job.name)
    selected = selector_labels(job, names.COMPONENT_ETCD)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, name, names.COMPONENT_ETCD),
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": selected},
            "template": {
                "metadata": {"labels": labels(job, names.COMPONENT_ETCD)},
                "spec": {
                    "automountServiceAccountToken": False,
                    "affinity": {
                        "podAntiAffinity": {
                            _PREFERRED: [{"weight": 100, "podAffinityTerm": _same_node_as_workers(job)}]
                        }
                    },
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 5,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": _USER,
                        "runAsGroup": _USER,
                        "fsGroup": _USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [_container(job, image)],
                    "volumes": [{"name": "data", "emptyDir": {}}],
                    **_placement(job, defaults),
                },
            },
        },
    }


def _placement(job: ElasticJob, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Scheduling and image pull fields: the job's value, or else the operator's default."""
    etcd = job.spec.rendezvous.etcd
    said = etcd.to_api() if etcd else {}
    wanted = {
        field: said.get(field) if said.get(field) not in (None, "") else defaults.get(field) for field in PLACEMENT
    }
    return {field: value for field, value in wanted.items() if value}


def _same_node_as_workers(job: ElasticJob) -> dict[str, Any]:
    """Losing a node with both worker pods and their etcd would also lose the record of how the job ended."""
    return {
        "labelSelector": {"matchLabels": selector_labels(job, names.COMPONENT_WORKER)},
        "topologyKey": "kubernetes.io/hostname",
    }


def _container(job: ElasticJob, image: str) -> dict[str, Any]:
    etcd = job.spec.rendezvous.etcd
    resources = etcd.resources.to_api() if etcd and etcd.resources else _RESOURCES
    return {
        "name": names.ETCD_CONTAINER,
        "image": etcd.image if etcd and etcd.image else image,
        "command": ["etcd", *_flags(job)],
        "ports": [{"name": names.ETCD_CLIENT_PORT_NAME, "containerPort": DEFAULT_ETCD_PORT, "protocol": "TCP"}],
        "readinessProbe": {**_probe("/health"), "periodSeconds": 1, "failureThreshold": 3, "timeoutSeconds": 2},
        # serializable: checks only this member, which is alive even while it waits for a quorum.
        "livenessProbe": {
            **_probe("/health?serializable=true"),
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "failureThreshold": 6,
            "timeoutSeconds": 5,
        },
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "data", "mountPath": _DATA}],
    }


def _flags(job: ElasticJob) -> list[str]:
    endpoint = names.managed_endpoint(job.name, job.namespace, DEFAULT_ETCD_PORT)
    return [
        f"--name={names.etcd_name(job.name)}-0",
        f"--data-dir={_DATA}",
        f"--listen-client-urls=http://0.0.0.0:{DEFAULT_ETCD_PORT}",
        f"--advertise-client-urls=http://{endpoint}",
        # A single member has no peers.
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        f"--initial-cluster={names.etcd_name(job.name)}-0=http://127.0.0.1:2380",
        # Without compaction, progress reports accumulate until the quota blocks all writes.
        "--auto-compaction-mode=revision",
        "--auto-compaction-retention=1000",
        "--log-level=warn",
    ]


def _probe(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": names.ETCD_CLIENT_PORT_NAME, "scheme": "HTTP"}}
