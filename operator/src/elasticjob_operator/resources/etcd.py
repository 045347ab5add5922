"""The StatefulSet of a job's own etcd: a single member without persistent storage, whose loss training survives, or
several with storage (etcd_members.py).

With TLS, it accepts only clients with a certificate of the job or of the operator. The kubelet has none, so health is
served on a port of its own, without TLS: it tells nothing but health and metrics.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from elasticjob_api import ElasticJob
from elasticjob_runtime.contract import DEFAULT_ETCD_PORT

from elasticjob_operator import certificates, names
from elasticjob_operator.queue_state import Placement
from elasticjob_operator.resources import etcd_members
from elasticjob_operator.resources.metadata import labels, metadata, selector_labels
from elasticjob_operator.resources.placement import place

_DATA, _DATA_VOLUME = "/var/lib/etcd", "data"
PLACEMENT = ("tolerations", "nodeSelector", "priorityClassName", "imagePullSecrets")
"""Pod spec fields that `spec.rendezvous.etcd` and the operator's settings can set."""
HEALTH_PORT = 2381
"""Where an etcd with TLS serves health to the kubelet."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_USER = 65532
"""Any non-root user works: etcd writes only to its volume, which fsGroup makes writable."""

_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
"""Requests fit an idle etcd; the limit only stops a runaway one. Overridden by the settings, and by
`spec.rendezvous.etcd.resources`."""


def etcd_stateful_set(
    job: ElasticJob,
    image: str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    secret: str = "",
    run: int = names.FIRST_RUN,
    placement: Placement = Placement(),  # noqa: B008 immutable
) -> dict[str, Any]:
    """`image`, `defaults`: etcd image and pod spec fields to use if the job does not set them. `secret`: name of the
    Secret with its certificates; empty: without TLS. `run`: the job's, each of which has data of its own. `placement`:
    where its queue has admitted it."""
    body = _stateful_set(job, image, defaults, secret, run)
    place(body["spec"]["template"], placement)
    body["metadata"]["annotations"] = {names.ANNOTATION_APPLIED: hash_of(body["spec"])}
    return body


def hash_of(spec: Mapping[str, Any]) -> str:
    """Hash of a spec as built by the operator, before the API server adds defaults."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def secret_of(stateful_set: Mapping[str, Any]) -> str:
    """Name of the Secret with the certificates of an existing etcd; empty: it runs without TLS."""
    pod = stateful_set.get("spec", {}).get("template", {}).get("spec", {})
    for volume in pod.get("volumes") or []:
        if volume.get("name") == names.CERTIFICATES_VOLUME:
            return str((volume.get("secret") or {}).get("secretName", ""))
    return ""


def _stateful_set(job: ElasticJob, image: str, defaults: Mapping[str, Any], secret: str, run: int) -> dict[str, Any]:
    name = names.etcd_name(job.name)
    selected, several = selector_labels(job, names.COMPONENT_ETCD), job.etcd_members > 1
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, name, names.COMPONENT_ETCD),
        "spec": {
            "replicas": job.etcd_members,
            "serviceName": names.etcd_peers(job.name) if several else name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": selected},
            **(etcd_members.storage(job, run) if several else {}),
            "template": {
                "metadata": {"labels": labels(job, names.COMPONENT_ETCD)},
                "spec": {
                    "automountServiceAccountToken": False,
                    "affinity": {"podAntiAffinity": {_PREFERRED: _avoided(job)}},
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 5,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": _USER,
                        "runAsGroup": _USER,
                        "fsGroup": _USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [_container(job, image, run, defaults.get("resources"), tls=bool(secret))],
                    "volumes": [
                        *([] if several else [{"name": _DATA_VOLUME, "emptyDir": {}}]),
                        *_certificates_volume(secret),
                    ],
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


def _avoided(job: ElasticJob) -> list[dict[str, Any]]:
    """Pods not to share a node with, if there is another. Losing a node with both worker pods and their etcd would also
    lose the record of how the job ended; losing one with two of three members stops etcd."""
    weights = {names.COMPONENT_WORKER: 100} if job.etcd_members == 1 else etcd_members.AVOIDED
    return [
        {
            "weight": weight,
            "podAffinityTerm": {
                "labelSelector": {"matchLabels": selector_labels(job, component)},
                "topologyKey": "kubernetes.io/hostname",
            },
        }
        for component, weight in weights.items()
    ]


def _certificates_volume(secret: str) -> list[dict[str, Any]]:
    if not secret:
        return []
    # 0440: the pod's fsGroup makes them readable for etcd.
    return [{"name": names.CERTIFICATES_VOLUME, "secret": {"secretName": secret, "defaultMode": 0o440}}]


def _container(
    job: ElasticJob, image: str, run: int, resources: Mapping[str, Any] | None, *, tls: bool
) -> dict[str, Any]:
    """`resources`: the operator's default; empty: ours."""
    etcd = job.spec.rendezvous.etcd
    resources = etcd.resources.to_api() if etcd and etcd.resources else resources or _RESOURCES
    return {
        "name": names.ETCD_CONTAINER,
        "image": etcd.image if etcd and etcd.image else image,
        "command": ["etcd", *_flags(job, run, tls=tls)],
        **({"env": etcd_members.ENVIRONMENT} if job.etcd_members > 1 else {}),
        "ports": [
            _port(names.ETCD_CLIENT_PORT_NAME, DEFAULT_ETCD_PORT),
            *([_port("peer", etcd_members.PEER_PORT)] if job.etcd_members > 1 else []),
            *([_port(names.ETCD_HEALTH_PORT_NAME, HEALTH_PORT)] if tls else []),
        ],
        "readinessProbe": {
            **_probe("/health", tls=tls),
            "periodSeconds": 1,
            "failureThreshold": 3,
            "timeoutSeconds": 2,
        },
        # serializable: checks only this member, which is alive even while it waits for a quorum.
        "livenessProbe": {
            **_probe("/health?serializable=true", tls=tls),
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
        "volumeMounts": [
            {
                "name": etcd_members.volume_name(job, run) if job.etcd_members > 1 else _DATA_VOLUME,
                "mountPath": _DATA,
            },
            *(
                [{"name": names.CERTIFICATES_VOLUME, "mountPath": names.CERTIFICATES_PATH, "readOnly": True}]
                if tls
                else []
            ),
        ],
    }


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _flags(job: ElasticJob, run: int, *, tls: bool) -> list[str]:
    scheme = "https" if tls else "http"
    return [
        f"--data-dir={etcd_members.DATA if job.etcd_members > 1 else _DATA}",
        f"--listen-client-urls={scheme}://0.0.0.0:{DEFAULT_ETCD_PORT}",
        *(etcd_members.flags(job, run, tls=tls) if job.etcd_members > 1 else _single(job, scheme)),
        # Without compaction, progress reports accumulate until the quota blocks all writes.
        "--auto-compaction-mode=revision",
        "--auto-compaction-retention=1000",
        "--log-level=warn",
        *(_tls_flags() if tls else []),
    ]


def _single(job: ElasticJob, scheme: str) -> list[str]:
    """Flags of a single member, which has no peers."""
    name, peer = names.etcd_member(job.name, 0), "http://127.0.0.1:2380"
    endpoint = names.managed_endpoint(job.name, job.namespace, DEFAULT_ETCD_PORT)
    return [
        f"--name={name}",
        f"--advertise-client-urls={scheme}://{endpoint}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={name}={peer}",
    ]


def _tls_flags() -> list[str]:
    folder = names.CERTIFICATES_PATH
    return [
        f"--cert-file={folder}/{certificates.SERVER_CERTIFICATE_FILE}",
        f"--key-file={folder}/{certificates.SERVER_KEY_FILE}",
        "--client-cert-auth=true",
        f"--trusted-ca-file={folder}/{certificates.CLIENT_CA_FILE}",
        # The JSON gateway is a client of its own server. The server's certificate is none for clients: with it, one
        # job's etcd could read another's.
        f"--client-cert-file={folder}/{certificates.WORKER_CERTIFICATE_FILE}",
        f"--client-key-file={folder}/{certificates.WORKER_KEY_FILE}",
        f"--listen-metrics-urls=http://0.0.0.0:{HEALTH_PORT}",
    ]


def _probe(path: str, *, tls: bool) -> dict[str, Any]:
    port = names.ETCD_HEALTH_PORT_NAME if tls else names.ETCD_CLIENT_PORT_NAME
    return {"httpGet": {"path": path, "port": port, "scheme": "HTTP"}}
