"""What a gang scheduler must tell the operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator import names
from elasticjob_operator.resources.metadata import owned
from elasticjob_operator.state import Kind


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
