"""All names that the operator assigns: labels, annotations, objects of a job, run IDs. Depends on no other module."""

from __future__ import annotations

import hashlib
import re

NamespacedName = tuple[str, str]
"""(namespace, name) of an object; of a job unless stated otherwise."""

FIELD_MANAGER = "elasticjob-operator"
"""Field manager of server-side apply, and reporting component of Events."""

LABEL_JOB = "elasticjob.dev/job-name"
LABEL_JOB_UID = "elasticjob.dev/job-uid"
"""Selects worker pods for their Service. Removed from a pod that is replaced before it has ended, so that the host name
of both resolves to the replacement."""
LABEL_COMPONENT = "elasticjob.dev/component"
LABEL_INDEX = "elasticjob.dev/worker-index"
LABEL_RUN = "elasticjob.dev/run"
LABEL_ATTEMPT = "elasticjob.dev/attempt"
"""On pods of a later attempt of a run: see policies/replacement.py."""
LABEL_TEMPLATE = "elasticjob.dev/template-hash"
"""Hash of the user-defined part of a worker pod."""
LABEL_WORKLOAD = "elasticjob.dev/workload"
"""On worker pods of a job in a queue: the Workload that admits them."""
LABEL_WORKLOAD_PART = "elasticjob.dev/workload-part"
"""On Workloads: base or surplus."""

ANNOTATION_APPLIED = "elasticjob.dev/applied-spec-hash"
"""On the etcd's StatefulSet: hash of the spec that the operator applied, to distinguish changes between releases of
the operator from changes made by others."""
ANNOTATION_WITHDRAWN = "elasticjob.dev/surplus-withdrawn"
"""On the base Workload: how often in a row a surplus was given back because its worker pods were not ready, and when
last."""
ANNOTATION_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Read by kubectl: default container of `kubectl logs` and `kubectl exec`."""

COMPONENT_WORKER = "worker"
COMPONENT_ETCD = "etcd"
COMPONENT_AUTOSCALER = "autoscaler"
COMPONENT_WORKLOAD = "workload"

CHECKPOINT_VOLUME = "elasticjob-checkpoint"
RUNTIME_VOLUME = "elasticjob-runtime"
"""The volume with the injected runtime, and the init container that fills it."""
RUNTIME_PATH = "/opt/elasticjob"
"""Where the training container has it."""
CERTIFICATES_VOLUME = "elasticjob-etcd-certificates"
"""Of worker pods and of the job's own etcd; also with credentials for another etcd."""
CERTIFICATES_PATH = "/etc/elasticjob/etcd"
"""Where containers find the certificates and credentials for their etcd."""

ETCD_CONTAINER = "etcd"
ETCD_CLIENT_PORT_NAME = "client"
ETCD_HEALTH_PORT_NAME = "health"

FIRST_RUN = 1
"""Number of a job's first run. Resuming a job starts a new run."""
FIRST_ATTEMPT = 1
"""Number of a run's first attempt; with backend etcd-v3, of the only one."""


_SUFFIX_LETTERS = b"bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' own for generated names: they spell no words."""
_LETTER_OF_BYTE = bytes(_SUFFIX_LETTERS[byte % len(_SUFFIX_LETTERS)] for byte in range(256))
_SUFFIX_LENGTH = 5
_WORKER = re.compile(r"(.+-worker-([0-9]+))(?:-[a-z0-9]+)?")


def worker_host(job: str, index: int) -> str:
    """Host name of the worker pods with that index, one after the other."""
    return f"{job}-worker-{index}"


def worker_name(job: str, index: int, *distinct: str) -> str:
    """Name of one worker pod, and member ID of its agent. `distinct`: what no other pod of that index has in common
    with it.

    >>> worker_name("digits", 0, "8c", "1")
    'digits-worker-0-gwtch'
    """
    host = worker_host(job, index)
    digest = hashlib.sha256("/".join((host, *distinct)).encode()).digest()
    return f"{host}-{digest[:_SUFFIX_LENGTH].translate(_LETTER_OF_BYTE).decode()}"


def index_of(worker: str) -> int:
    """The index in the name of a worker pod; -1: it is none.

    >>> index_of("digits-worker-12-gwtch")
    12
    """
    found = _WORKER.fullmatch(worker)
    return int(found[2]) if found else -1


def host_of(pod: str) -> str:
    """The host name of a pod with that name, unless another one is set."""
    found = _WORKER.fullmatch(pod)
    return found[1] if found else pod


def workers_service(job: str) -> str:
    """Name of the headless Service of the worker pods."""
    return job


def workers_policy(job: str) -> str:
    """Name of the NetworkPolicy of the worker pods. Not the job's own, which users give to policies of theirs."""
    return f"{job}-worker"


def etcd_name(job: str) -> str:
    """Name of the job's own etcd: its StatefulSet, Service and NetworkPolicy."""
    return f"{job}-etcd"


def etcd_peers(job: str) -> str:
    """Name of the headless Service that gives each of several etcd members a name of its own."""
    return f"{etcd_name(job)}-peers"


def etcd_member(job: str, index: int) -> str:
    """Name of an etcd pod, and of the member in it."""
    return f"{etcd_name(job)}-{index}"


def etcd_member_host(job: str, namespace: str, member: str) -> str:
    """Host name of one of several members. `member`: its pod's name."""
    return f"{member}.{etcd_peers(job)}.{namespace}.svc"


def etcd_host(job: str, namespace: str) -> str:
    """Host name of the job's own etcd."""
    return f"{etcd_name(job)}.{namespace}.svc"


def managed_endpoint(job: str, namespace: str, port: int, *, tls: bool = False, members: int = 1) -> str:
    """Endpoint of the job's own etcd: host:port, and with TLS a URL. With several members there are several, separated
    by commas: that of the Service, whose name resolves from the start, and each member's own, so that a client leaves a
    member at once whose node is gone, although the Service still names it."""
    hosts = [etcd_host(job, namespace)]
    if members > 1:
        hosts += [etcd_member_host(job, namespace, etcd_member(job, index)) for index in range(members)]
    return ",".join(f"{'https://' if tls else ''}{host}:{port}" for host in hosts)


def base_workload(job: str) -> str:
    """Name of the Workload without which the job does not run."""
    return job


def surplus_workload(job: str, number: int) -> str:
    """Name of a Workload for worker pods above minReplicas."""
    return f"{job}-surplus-{number}"


def pod_group(job: str, run: int) -> str:
    """Name of the group of worker pods that a scheduler starts together."""
    return f"{job}-{run}"


def certificates_name(job: str, uid: str, run: int) -> str:
    """Name of the Secret with the certificates of the job's own etcd. It contains part of the UID, so that a job that
    is deleted and created again never uses certificates of its predecessor."""
    return f"{certificates_prefix(job, uid)}{run}"


def certificates_prefix(job: str, uid: str) -> str:
    return f"{etcd_name(job)}-{uid[:8]}-"


def run_secret_name(job: str, uid: str, run: int) -> str:
    """Name of the Secret with the credentials of a run for the shared etcd."""
    return f"{job}-rendezvous-{uid[:8]}-{run}"


def run_user(run_id: str) -> str:
    """Name of the user, and of the role, of a run in the shared etcd."""
    return f"elasticjob-{run_id}"


def run_id(uid: str, run: int, attempt: int = FIRST_ATTEMPT) -> str:
    """Run ID of the agents of one attempt of a run. It contains the UID, so that jobs that share an etcd never mix.

    >>> run_id("8c", 2), run_id("8c", 2, 3)
    ('8c-2', '8c-2.3')
    """
    return f"{uid}-{run}" if attempt == FIRST_ATTEMPT else f"{uid}-{run}.{attempt}"


def run_of(run_id: str, uid: str) -> int:
    """The run number in a run ID; FIRST_RUN if the ID belongs to another job.

    >>> run_of("8c-2", "8c"), run_of("8c-2.3", "8c"), run_of("", "8c")
    (2, 2, 1)
    """
    prefix, _, numbers = run_id.rpartition("-")
    number = numbers.partition(".")[0]
    return int(number) if prefix == uid and number.isdigit() else FIRST_RUN


def attempt_of(run_id: str) -> int:
    """The number of the attempt in a run ID.

    >>> attempt_of("8c-2"), attempt_of("8c-2.3")
    (1, 3)
    """
    number = run_id.rpartition("-")[2].partition(".")[2]
    return int(number) if number.isdigit() else FIRST_ATTEMPT


def worker_selector(job: str) -> str:
    """Label selector of a job's worker pods, as in `status.selector`."""
    return f"{LABEL_JOB}={job},{LABEL_COMPONENT}={COMPONENT_WORKER}"
