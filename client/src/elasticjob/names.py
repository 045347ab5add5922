"""Names of the API and of the objects that the operator makes.

They repeat those of `elasticjob_api` and of the operator, because importing the models takes longer than most commands;
a test compares them.
"""

from __future__ import annotations

GROUP = "elasticjob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ElasticJob"
PLURAL = "elasticjobs"
SINGULAR = "elasticjob"
PROGRESS_PLURAL = "elasticjobprogresses"
CRD = f"{PLURAL}.{GROUP}"

LABEL_JOB = "elasticjob.dev/job-name"
LABEL_COMPONENT = "elasticjob.dev/component"
LABEL_INDEX = "elasticjob.dev/worker-index"
COMPONENT_WORKER = "worker"

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a job that waits in a LocalQueue of Kueue."""
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
"""Label with the WorkloadPriorityClass of such a job."""

REMEDY = " What to do: "
"""In the message of a condition, between what is the case and the remedy."""

OPERATOR_LABELS = "app.kubernetes.io/component=operator,app.kubernetes.io/name=elasticjob"
"""Selects the operator's Deployment, as its chart labels it."""
INSTALL = "helm install elasticjob charts/elasticjob --namespace elasticjob-system --create-namespace"
"""How an administrator installs the CRD and the operator."""


def worker_selector(job: str) -> str:
    return f"{LABEL_JOB}={job},{LABEL_COMPONENT}={COMPONENT_WORKER}"
