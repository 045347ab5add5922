"""The operator's side of the Kubernetes API: informers that observe, and the few writes. Beside `rendezvous`, the only
I/O.

Errors, all from `cluster.api`:

    ApiError         the API server answered with an error; has `status`, `reason` and the server's own words
      NotFoundError       404: gone already, or never there
      ConflictError       409: exists already, or is not the object it was
      GoneError           410: the history before this resourceVersion is no longer kept
      RefusedError        other 4xx: the request itself is at fault, or not allowed (quota, admission, RBAC)
        NamespaceTerminatingError  the namespace is being terminated or gone: nothing can be created there any more
    ConnectionError  no answer (aiohttp's errors are chained)
"""

from elasticjob_operator.kube.client import (
    ApiError,
    ConflictError,
    GoneError,
    KubeClient,
    NamespaceTerminatingError,
    NotFoundError,
    RefusedError,
)
from elasticjob_operator.kube.cluster import Cluster
from elasticjob_operator.kube.credentials import Credentials
from elasticjob_operator.kube.events import EventRecorder
from elasticjob_operator.kube.jobs import list_job_versions, read_job
from elasticjob_operator.kube.leader_election import LeaderElectionConfig, LeaderElector

__all__ = [
    "ApiError",
    "Cluster",
    "ConflictError",
    "Credentials",
    "EventRecorder",
    "GoneError",
    "KubeClient",
    "LeaderElectionConfig",
    "LeaderElector",
    "NamespaceTerminatingError",
    "NotFoundError",
    "RefusedError",
    "list_job_versions",
    "read_job",
]
