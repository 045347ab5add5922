"""Worker pods: the user's template, with the job's environment added to the training container."""

from __future__ import annotations

import copy
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_api import ElasticJob, RendezvousBackend
from elasticjob_api.pod_fields import pod_values
from elasticjob_runtime.contract import Env

from elasticjob_operator import certificates, names
from elasticjob_operator.resources.metadata import labels, owner_reference
from elasticjob_operator.resources.template import (
    TEMPLATE,
    InvalidTemplateError,
    check_container,
    check_volume_name,
    mount,
    training_container,
)

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_DEFAULT_GRACE = 30
"""Kubernetes' own terminationGracePeriodSeconds, s."""
_AGENT_SECONDS = 5
"""Seconds that the agent needs to leave the job after its worker processes have exited."""
_FRESH_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Read by torch. Without it, c10d and etcd-v2 restart worker processes with the store of the previous round, where they
usually hang after a lost pod."""
_WORKER_FILES = {
    "cacert": certificates.CA_FILE,
    "cert": certificates.WORKER_CERTIFICATE_FILE,
    "key": certificates.WORKER_KEY_FILE,
}
"""Keys of --rdzv-conf, and the files of the job's own etcd that they name."""


def worker_pod(
    job: ElasticJob,
    *,
    index: int,
    run: int,
    endpoint: str,
    attempt: int = names.FIRST_ATTEMPT,
    name: str = "",
    template_hash: str = "",
    avoid: Sequence[str] = (),
    certificates_secret: str = "",
    credentials_secret: str = "",
) -> dict[str, Any]:
    """A worker pod with that index. `name`: default: one that serves for a dry run. `template_hash`: its label; empty:
    of the job as it is. `avoid`: nodes that it should prefer not to use. `certificates_secret`, `credentials_secret`:
    names of the Secret with the certificates of the job's own etcd, or with the credentials for another etcd; empty:
    there is none. Raises InvalidTemplateError."""
    pod = _unnamed_pod(job)
    pod["metadata"]["labels"] |= {
        names.LABEL_RUN: str(run),
        names.LABEL_TEMPLATE: template_hash or hash_of(job),
        **({names.LABEL_ATTEMPT: str(attempt)} if attempt != names.FIRST_ATTEMPT else {}),
    }
    pod["spec"]["subdomain"] = names.workers_service(job.name)
    container = training_container(job, pod["spec"])
    _prefer_other_nodes(pod["spec"], avoid)
    workers_grace = shutdown_seconds(job)
    if job.spec.lifecycle.graceful_shutdown_seconds is not None and _grace_of(job) < workers_grace + _AGENT_SECONDS:
        pod["spec"]["terminationGracePeriodSeconds"] = workers_grace + _AGENT_SECONDS
    # Ours come first, so that the user's variables can refer to them: $(PET_NNODES).
    if certificates_secret:
        items = [{"key": file, "path": file} for file in _WORKER_FILES.values()]
        _mount_secret(pod["spec"], container, {"secretName": certificates_secret, "items": items})
    elif credentials_secret:
        _mount_secret(pod["spec"], container, {"secretName": credentials_secret})
    conf = _rendezvous_conf(job, index, certificates_secret, credentials_secret)
    ours = _environment(job, run, attempt, endpoint, workers_grace, conf)
    container["env"] = _with_users(ours, container.get("env") or [])
    return numbered(pod, job.name, index, name or names.worker_name(job.name, index, job.uid))


def numbered(pod: Mapping[str, Any], job: str, index: int, name: str) -> dict[str, Any]:
    """The worker pod with that index and name, made from one with another index. They share what they have in common:
    a job may have thousands. Only worker pod 0 may differ in more (`is_host` of c10d)."""
    metadata, spec = pod["metadata"], pod["spec"]
    return {
        **pod,
        "metadata": {**metadata, "name": name, "labels": {**metadata["labels"], names.LABEL_INDEX: str(index)}},
        # `<host name>.<service>` resolves to the pod, or to its replacement once there is one.
        "spec": {**spec, "hostname": names.worker_host(job, index)},
    }


def _with_users(ours: list[dict[str, Any]], users: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """If a name is repeated, the last one wins. The user's settings in PET_RDZV_CONF follow ours."""
    conf = next((variable for variable in ours if variable["name"] == Env.RDZV_CONF), None)
    theirs = next((user for user in users if user.get("name") == Env.RDZV_CONF), None)
    if conf is None or theirs is None:
        return [*ours, *users]
    if "valueFrom" in theirs:
        raise InvalidTemplateError(
            f"env {Env.RDZV_CONF} must be a literal value: the operator adds settings of its own to it"
        )
    joined = {"name": Env.RDZV_CONF, "value": ",".join(word for word in (conf["value"], theirs.get("value")) if word)}
    return [
        *(variable for variable in ours if variable is not conf),
        joined,
        *(variable for variable in users if variable is not theirs),
    ]


def _prefer_other_nodes(spec: dict[str, Any], avoid: Sequence[str]) -> None:
    if not avoid:
        return
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    node_affinity = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    # A field requirement takes exactly one value; the requirements of one term are ANDed.
    elsewhere = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in avoid]
    term = {"weight": 100, "preference": {"matchFields": elsewhere}}
    node_affinity[_PREFERRED] = [*(node_affinity.get(_PREFERRED) or []), term]


def shutdown_seconds(job: ElasticJob) -> int:
    """Seconds between SIGTERM and SIGKILL for worker processes; the pod's grace period is longer."""
    wanted = job.spec.lifecycle.graceful_shutdown_seconds
    return max(0, _grace_of(job) - _AGENT_SECONDS) if wanted is None else wanted


def _grace_of(job: ElasticJob) -> int:
    given = (job.spec.workers.template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return given if isinstance(given, int) else _DEFAULT_GRACE


def check_template(job: ElasticJob) -> None:
    """Raises InvalidTemplateError."""
    _unnamed_pod(job)


def _unnamed_pod(job: ElasticJob) -> dict[str, Any]:
    """What all worker pods of a job have in common."""
    template: dict[str, Any] = copy.deepcopy(job.spec.workers.template)
    spec = template.get("spec")
    if spec is None:
        raise InvalidTemplateError(f"{TEMPLATE}.spec is missing: give the pod's containers there")
    container = training_container(job, spec)
    check_container(container)
    metadata = {
        key: value for key, value in (template.get("metadata") or {}).items() if key not in ("name", "generateName")
    }
    metadata["namespace"] = job.namespace
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels(job, names.COMPONENT_WORKER)}
    metadata["annotations"] = {
        names.ANNOTATION_DEFAULT_CONTAINER: container["name"],
        **(metadata.get("annotations") or {}),
    }
    metadata["ownerReferences"] = [owner_reference(job)]
    spec["restartPolicy"] = "Never"
    if not spec.get("serviceAccountName"):
        spec.setdefault("automountServiceAccountToken", False)  # a script has no use for the default account's token
    if spec.get("hostNetwork"):
        # With the default DNS policy, a pod on the host network cannot resolve Services, and so not the rendezvous.
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    for other in (container, *(spec.get("initContainers") or [])):
        # Without a termination message, the last lines of the log say why it failed.
        other.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    _set_priority(job, spec)
    _mount_checkpoints(job, spec, container)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _set_priority(job: ElasticJob, spec: dict[str, Any]) -> None:
    wanted, given = job.spec.scheduling.priority_class_name, spec.get("priorityClassName")
    if not wanted:
        return
    if given and given != wanted:
        raise InvalidTemplateError(
            f"{TEMPLATE}.spec.priorityClassName is {given!r}, but spec.scheduling.priorityClassName is {wanted!r}: "
            "remove either"
        )
    spec["priorityClassName"] = wanted


def hash_of(job: ElasticJob) -> str:
    """Hash of the user-defined part of a worker pod, which can change only while the job is suspended or has not
    trained. It does not depend on the sizes, which running agents read from etcd."""
    return hashlib.sha256(json.dumps(pod_values(job.spec), sort_keys=True).encode()).hexdigest()[:10]


def _rendezvous_conf(job: ElasticJob, index: int, certificates_secret: str, credentials_secret: str) -> str:
    if job.spec.rendezvous.backend is RendezvousBackend.C10D:
        # torchrun would derive this from names that may not resolve yet.
        return f"is_host={str(index == 0).lower()}"
    if certificates_secret:
        return ",".join(f"{key}={names.CERTIFICATES_PATH}/{file}" for key, file in _WORKER_FILES.items())
    return f"credentials={names.CERTIFICATES_PATH}" if credentials_secret else ""


def _environment(
    job: ElasticJob, run: int, attempt: int, endpoint: str, workers_grace: int, rendezvous_conf: str
) -> list[dict[str, Any]]:
    """Variables that torchrun and elasticrun read as flags, and ElasticJob's own."""
    values = {
        Env.NNODES: f"{job.min_replicas}:{job.max_replicas}",
        Env.NPROC_PER_NODE: str(job.spec.workers.procs_per_worker),
        Env.RDZV_ID: names.run_id(job.uid, run, attempt),
        Env.RDZV_BACKEND: str(job.spec.rendezvous.backend),
        Env.RDZV_ENDPOINT: endpoint,
        Env.MAX_RESTARTS: str(job.spec.failure_policy.max_restarts),
        Env.SHUTDOWN_TIMEOUT: str(workers_grace),
        Env.JOB_NAME: job.name,
        Env.JOB_UID: job.uid,
        Env.JOB_NAMESPACE: job.namespace,
        Env.RUN: str(run),
    }
    values |= _preflight(job)
    if job.replica_size:
        values[Env.REPLICA_SIZE] = str(job.replica_size)
    if rendezvous_conf:
        values[Env.RDZV_CONF] = rendezvous_conf
    if job.spec.rendezvous.backend is not RendezvousBackend.ETCD_V3:
        values[_FRESH_STORE] = "1"
    if job.spec.checkpoint:
        values[Env.CHECKPOINT_DIRECTORY] = job.spec.checkpoint.directory
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": Env.MEMBER_ID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": Env.ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]


def _preflight(job: ElasticJob) -> dict[str, str]:
    wanted = job.spec.workers.preflight
    if wanted is None:
        return {}
    return {
        Env.PREFLIGHT: ",".join(wanted.checks),
        Env.PREFLIGHT_COMMAND: shlex.join(wanted.command),
        Env.PREFLIGHT_TIMEOUT: str(wanted.timeout_seconds),
    }


def _mount_checkpoints(job: ElasticJob, spec: dict[str, Any], container: dict[str, Any]) -> None:
    checkpoint = job.spec.checkpoint
    if checkpoint is None or checkpoint.volume is None:
        return
    check_volume_name(spec, names.CHECKPOINT_VOLUME, "spec.checkpoint.volume")
    mounts = container.get("volumeMounts") or []
    taken = [present.get("name") for present in mounts if _path(present) == checkpoint.directory]
    if taken:
        raise InvalidTemplateError(
            f"{TEMPLATE} already mounts volume {taken[0]!r} at spec.checkpoint.directory ({checkpoint.directory}): "
            "remove that mount, or spec.checkpoint.volume"
        )
    mount(spec, container, {**checkpoint.volume.to_api(), "name": names.CHECKPOINT_VOLUME}, checkpoint.directory)


def _mount_secret(spec: dict[str, Any], container: dict[str, Any], source: dict[str, Any]) -> None:
    name = names.CERTIFICATES_VOLUME
    check_volume_name(spec, name, "the volume with the certificates or credentials for the job's etcd")
    # Readable for every user: the image's user is not known, and only the pod's containers can reach the volume.
    volume = {"name": name, "secret": {**source, "defaultMode": 0o444}}
    mount(spec, container, volume, names.CERTIFICATES_PATH, readOnly=True)


def _path(mount: Mapping[str, Any]) -> str:
    return str(mount.get("mountPath")).rstrip("/")
