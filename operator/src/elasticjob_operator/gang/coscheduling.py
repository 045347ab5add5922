"""The coscheduling plug-in of scheduler-plugins. Its scheduler has no fixed name: the job's template gives it.

https://github.com/kubernetes-sigs/scheduler-plugins/tree/master/pkg/coscheduling
"""

from __future__ import annotations

from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator.gang.provider import Provider
from elasticjob_operator.state import Kind

_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
SCHEDULE_TIMEOUT_SECONDS = 60
"""How long nodes are kept for the first pods of a group while the others find none."""


def _spec(job: ElasticJob) -> dict[str, Any]:
    return {"minMember": job.min_replicas, "scheduleTimeoutSeconds": SCHEDULE_TIMEOUT_SECONDS}


def _decorate(pod: dict[str, Any], group: str) -> None:
    pod["metadata"]["labels"][_GROUP_LABEL] = group


PROVIDER = Provider(
    kind=Kind.COSCHEDULING_POD_GROUP, api_version="scheduling.x-k8s.io/v1alpha1", spec=_spec, decorate=_decorate
)
