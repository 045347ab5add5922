"""The HorizontalPodAutoscaler of a job that has `spec.scaling.metrics`: it changes `spec.workers.replicas` by the scale
subresource."""

from __future__ import annotations

import copy
from typing import Any

from elasticjob_api import API_VERSION, KIND, ElasticJob

from elasticjob_operator import names
from elasticjob_operator.resources.metadata import owned


def autoscaler(job: ElasticJob) -> dict[str, Any]:
    scaling = job.spec.scaling
    spec = {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": job.name},
        "minReplicas": job.min_replicas,
        "maxReplicas": job.max_replicas,
        "metrics": copy.deepcopy(list(scaling.metrics)),
        **({"behavior": copy.deepcopy(scaling.behavior)} if scaling.behavior else {}),
    }
    return owned(job, "autoscaling/v2", "HorizontalPodAutoscaler", job.name, names.COMPONENT_AUTOSCALER, spec=spec)
