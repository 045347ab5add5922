"""Kubernetes' own scheduler, with the feature gates GenericWorkload and GangScheduling (alpha in 1.36).

https://kubernetes.io/docs/concepts/scheduling-eviction/gang-scheduling/
"""

from __future__ import annotations

from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator.gang.provider import Provider
from elasticjob_operator.state import Kind


def _spec(job: ElasticJob) -> dict[str, Any]:
    return {"schedulingPolicy": {"gang": {"minCount": job.min_replicas}}}


def _decorate(pod: dict[str, Any], group: str) -> None:
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}


PROVIDER = Provider(
    kind=Kind.POD_GROUP, api_version="scheduling.k8s.io/v1alpha2", spec=_spec, decorate=_decorate, is_fixed=True
)
