"""Every name that the operator gives: labels, objects of a job, run ids. Everybody may import it; it imports nothing of
ours."""

from __future__ import annotations

NamespacedName = tuple[str, str]
"""(namespace, name) of an object; of a job where nothing else is said."""

FIELD_MANAGER = "elasticjob-operator"
"""Field manager of what we apply, and the reporting component of our Events."""

LABEL_JOB = "elasticjob.dev/job-name"
LABEL_JOB_UID = "elasticjob.dev/job-uid"
LABEL_COMPONENT = "elasticjob.dev/component"
LABEL_INDEX = "elasticjob.dev/worker-index"
LABEL_RUN = "elasticjob.dev/run"
LABEL_TEMPLATE = "elasticjob.dev/template-hash"
"""Hash of the user's part of a worker pod."""

ANNOTATION_APPLIED = "elasticjob.dev/applied-spec-hash"
"""On the etcd's StatefulSet: of what the operator applied, to tell its own changes from one release to the next from
somebody else's."""
ANNOTATION_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""kubectl's own: which container `kubectl logs` and `kubectl exec` mean."""

COMPONENT_WORKER = "worker"
COMPONENT_ETCD = "etcd"
COMPONENT_AUTOSCALER = "autoscaler"

CHECKPOINT_VOLUME = "elasticjob-checkpoint"

ETCD_CONTAINER = "etcd"
ETCD_CLIENT_PORT_NAME = "client"

FIRST_RUN = 1
"""Number of a job's first run. A resumed job starts a new one."""


def worker_name(job: str, index: int) -> str:
    """Name of a worker pod, and of the member that its agent is."""
    return f"{job}-worker-{index}"


def workers_service(job: str) -> str:
    """Name of the headless Service of the worker pods."""
    return job


def etcd_name(job: str) -> str:
    """Name of the job's own etcd: its StatefulSet and its Service."""
    return f"{job}-etcd"


def managed_endpoint(job: str, namespace: str, port: int) -> str:
    """host:port of the job's own etcd."""
    return f"{etcd_name(job)}.{namespace}.svc:{port}"


def run_id(uid: str, run: int) -> str:
    """Under which the agents of one run meet. The uid, never the name: two jobs in one etcd must not meet."""
    return f"{uid}-{run}"


def run_of(run_id: str, uid: str) -> int:
    """The run's number in a run id; FIRST_RUN where it is not an id of this job.

    >>> run_of("8c-2", "8c"), run_of("", "8c")
    (2, 1)
    """
    prefix, _, number = run_id.rpartition("-")
    return int(number) if prefix == uid and number.isdigit() else FIRST_RUN


def worker_selector(job: str) -> str:
    """Label selector of a job's worker pods, for `status.selector` and for people."""
    return f"{LABEL_JOB}={job},{LABEL_COMPONENT}={COMPONENT_WORKER}"
