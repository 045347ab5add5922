"""Volcano: its scheduler takes victims only above minMember.

https://volcano.sh/en/docs/podgroup/
"""

from __future__ import annotations

from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator.gang.provider import Provider
from elasticjob_operator.state import Kind

SCHEDULER = "volcano"
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
"""On the job: Volcano's queue."""
_GROUP_ANNOTATION = "scheduling.k8s.io/group-name"


def _spec(job: ElasticJob) -> dict[str, Any]:
    queue = job.metadata.annotations.get(QUEUE_ANNOTATION)
    priority = job.spec.scheduling.priority_class_name
    return {
        "minMember": job.min_replicas,
        **({"queue": queue} if queue else {}),
        **({"priorityClassName": priority} if priority else {}),
    }


def _decorate(pod: dict[str, Any], group: str) -> None:
    metadata = pod["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), _GROUP_ANNOTATION: group}
    pod["spec"].setdefault("schedulerName", SCHEDULER)


PROVIDER = Provider(
    kind=Kind.VOLCANO_POD_GROUP, api_version="scheduling.volcano.sh/v1beta1", spec=_spec, decorate=_decorate
)
