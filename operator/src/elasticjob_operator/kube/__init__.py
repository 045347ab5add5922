"""The operator's side of the Kubernetes API: informers, and the few writes. Besides `etcd`, the operator's only I/O.

Errors, all from `kube.client`:

    ApiError         the API server returned an error; has `status`, `reason` and the server's message
      NotFoundError       404: does not exist
      ConflictError       409: exists already, or has changed
      GoneError           410: this resourceVersion is too old
      RejectedError        other 4xx: the request is invalid or forbidden (quota, admission, RBAC)
        NamespaceTerminatingError  the namespace is being terminated or deleted: nothing can be created in it
    ConnectionError  no response (aiohttp's errors are chained)
"""

from elasticjob_operator.kube.apply_result import ApplyResult
from elasticjob_operator.kube.bounded import FAULT, bounded_job, values_in, without_spec
from elasticjob_operator.kube.certificates import CertificatesUnavailable, OperatorCertificates
from elasticjob_operator.kube.client import (
    ApiError,
    ConflictError,
    GoneError,
    KubeClient,
    NamespaceTerminatingError,
    NotFoundError,
    RejectedError,
)
from elasticjob_operator.kube.cluster import Cluster
from elasticjob_operator.kube.credentials import Credentials
from elasticjob_operator.kube.etcd_secrets import EtcdSecrets
from elasticjob_operator.kube.events import EventRecorder
from elasticjob_operator.kube.jobs import list_job_versions, read_job
from elasticjob_operator.kube.kopf_session import KopfSession
from elasticjob_operator.kube.metrics_access import MetricsAccess
from elasticjob_operator.kube.shard_leases import LeaseTerms, ShardLeases, writing_about
from elasticjob_operator.kube.tier_secrets import TierSecrets

__all__ = [
    "FAULT",
    "ApiError",
    "ApplyResult",
    "CertificatesUnavailable",
    "Cluster",
    "ConflictError",
    "Credentials",
    "EtcdSecrets",
    "EventRecorder",
    "GoneError",
    "KopfSession",
    "KubeClient",
    "LeaseTerms",
    "MetricsAccess",
    "NamespaceTerminatingError",
    "NotFoundError",
    "OperatorCertificates",
    "RejectedError",
    "ShardLeases",
    "TierSecrets",
    "bounded_job",
    "list_job_versions",
    "read_job",
    "values_in",
    "without_spec",
    "writing_about",
]
