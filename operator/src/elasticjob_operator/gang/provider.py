"""The schedulers with gangs: the PodGroup that each wants, and what names it in a worker pod."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator import names
from elasticjob_operator.resources.metadata import owned
from elasticjob_operator.state import Kind

SCHEDULE_TIMEOUT_SECONDS = 60
"""How long coscheduling keeps nodes for the first pods of a group while the others find none."""
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
"""On the job: Volcano's queue."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """A scheduler with gangs."""

    kind: Kind
    api_version: str
    spec: Callable[[ElasticJob], dict[str, Any]]
    """Of the PodGroup."""
    decorate: Callable[[dict[str, Any], str], None]
    """Names the group of that name in a worker pod."""
    is_fixed: bool = False
    """The API server rejects another spec for a PodGroup that exists."""

    def pod_group(self, job: ElasticJob, run: int) -> dict[str, Any]:
        """One for each run: not every API server lets it change how many pods a group needs."""
        name = names.pod_group(job.name, run)
        return owned(job, self.api_version, "PodGroup", name, names.COMPONENT_WORKER, spec=self.spec(job))


def _native_spec(job: ElasticJob) -> dict[str, Any]:
    return {"schedulingPolicy": {"gang": {"minCount": job.min_replicas}}}


def _native_pod(pod: dict[str, Any], group: str) -> None:
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}


NATIVE = Provider(
    kind=Kind.POD_GROUP,
    api_version="scheduling.k8s.io/v1alpha2",
    spec=_native_spec,
    decorate=_native_pod,
    is_fixed=True,
)
"""Kubernetes' own scheduler, with the feature gates GenericWorkload and GangScheduling (alpha in 1.36).

https://kubernetes.io/docs/concepts/scheduling-eviction/gang-scheduling/
"""


def _volcano_spec(job: ElasticJob) -> dict[str, Any]:
    queue = job.metadata.annotations.get(QUEUE_ANNOTATION)
    priority = job.spec.scheduling.priority_class_name
    return {
        "minMember": job.min_replicas,
        **({"queue": queue} if queue else {}),
        **({"priorityClassName": priority} if priority else {}),
    }


def _volcano_pod(pod: dict[str, Any], group: str) -> None:
    metadata = pod["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), "scheduling.k8s.io/group-name": group}
    pod["spec"].setdefault("schedulerName", "volcano")


VOLCANO = Provider(
    kind=Kind.VOLCANO_POD_GROUP,
    api_version="scheduling.volcano.sh/v1beta1",
    spec=_volcano_spec,
    decorate=_volcano_pod,
)
"""Its scheduler takes victims only above minMember.

https://volcano.sh/en/docs/podgroup/
"""


def _coscheduling_spec(job: ElasticJob) -> dict[str, Any]:
    return {"minMember": job.min_replicas, "scheduleTimeoutSeconds": SCHEDULE_TIMEOUT_SECONDS}


def _coscheduling_pod(pod: dict[str, Any], group: str) -> None:
    pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = group


COSCHEDULING = Provider(
    kind=Kind.COSCHEDULING_POD_GROUP,
    api_version="scheduling.x-k8s.io/v1alpha1",
    spec=_coscheduling_spec,
    decorate=_coscheduling_pod,
)
"""The coscheduling plug-in of scheduler-plugins. Its scheduler has no fixed name: the job's template gives it.

https://github.com/kubernetes-sigs/scheduler-plugins/tree/master/pkg/coscheduling
"""
