"""The resources that the operator watches and writes, and their paths."""

from __future__ import annotations

import dataclasses

from elasticjob_api import GROUP, PLURAL, VERSION, progress

from elasticjob_operator.gang import PROVIDERS
from elasticjob_operator.queueing.bodies import API_VERSION as QUEUE_API
from elasticjob_operator.state import Kind


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApiResource:
    kind: str
    plural: str
    group_version: str = "v1"
    """`v1`, or `group/version`."""
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Of one object, or of the collection: of a namespace, or (empty) of the whole cluster."""
        root = f"/api/{self.group_version}" if "/" not in self.group_version else f"/apis/{self.group_version}"
        scope = [f"namespaces/{namespace}"] if namespace and self.namespaced else []
        return "/".join(part for part in (root, *scope, self.plural, name, subresource) if part)


PODS = ApiResource(kind="Pod", plural="pods")
SERVICES = ApiResource(kind="Service", plural="services")
STATEFUL_SETS = ApiResource(kind="StatefulSet", plural="statefulsets", group_version="apps/v1")
AUTOSCALERS = ApiResource(
    kind="HorizontalPodAutoscaler", plural="horizontalpodautoscalers", group_version="autoscaling/v2"
)
NETWORK_POLICIES = ApiResource(kind="NetworkPolicy", plural="networkpolicies", group_version="networking.k8s.io/v1")
DISRUPTION_BUDGETS = ApiResource(kind="PodDisruptionBudget", plural="poddisruptionbudgets", group_version="policy/v1")
NODES = ApiResource(kind="Node", plural="nodes", namespaced=False)
SECRETS = ApiResource(kind="Secret", plural="secrets")
"""Created and deleted by name; never listed or watched. Read by name: the operator's own CA, and the credentials for an
etcd that it does not run."""
LEASES = ApiResource(kind="Lease", plural="leases", group_version="coordination.k8s.io/v1")
EVENTS = ApiResource(kind="Event", plural="events")
JOBS = ApiResource(kind="ElasticJob", plural=PLURAL, group_version=f"{GROUP}/{VERSION}")
PROGRESS = ApiResource(kind=progress.KIND, plural=progress.PLURAL, group_version=f"{GROUP}/{VERSION}")
"""Written only."""

WORKLOADS = ApiResource(kind="Workload", plural="workloads", group_version=QUEUE_API)
FLAVORS = ApiResource(kind="ResourceFlavor", plural="resourceflavors", group_version=QUEUE_API, namespaced=False)
QUEUE_PRIORITIES = ApiResource(
    kind="WorkloadPriorityClass", plural="workloadpriorityclasses", group_version=QUEUE_API, namespaced=False
)
PRIORITY_CLASSES = ApiResource(
    kind="PriorityClass", plural="priorityclasses", group_version="scheduling.k8s.io/v1", namespaced=False
)
"""Read for jobs in queues."""

POD_GROUPS = {
    provider.kind: ApiResource(kind=provider.kind.value, plural="podgroups", group_version=provider.api_version)
    for provider in PROVIDERS.values()
}
"""Of schedulers that a cluster may have."""

OWNED = {
    Kind.SERVICE: SERVICES,
    Kind.STATEFUL_SET: STATEFUL_SETS,
    Kind.AUTOSCALER: AUTOSCALERS,
    Kind.NETWORK_POLICY: NETWORK_POLICIES,
    Kind.DISRUPTION_BUDGET: DISRUPTION_BUDGETS,
}
"""Kinds that every cluster serves."""
WRITTEN = {**OWNED, **POD_GROUPS, Kind.WORKLOAD: WORKLOADS}
