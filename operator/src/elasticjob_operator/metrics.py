"""Figures for Prometheus, in the process's own registry. One module, so that their names are found in one place.

What runs of training take is counted in `rendezvous.meter`, from what agents say; jobs by condition in
`reconciler.jobs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import REGISTRY, Collector

RECONCILE = Histogram(
    "elasticjob_reconcile_seconds",
    "Time of one reconciliation of one job: writes, their retries and their wait for a place included, the wait in "
    "the queue not.",
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
QUEUE_WAIT = Histogram(
    "elasticjob_queue_wait_seconds",
    "How long a job waited to be reconciled, from the first thing that woke it.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
QUEUE_DEPTH = Gauge("elasticjob_queue_depth", "Jobs that wait to be reconciled.")
QUEUE_AGE = Gauge("elasticjob_queue_oldest_seconds", "How long the job at the head of the queue has waited.")
API_REQUESTS = Counter(
    "elasticjob_api_requests", "Requests to the API server; code 0: no answer.", ["verb", "resource", "code"]
)
PODS_CREATED = Counter("elasticjob_pods_created", "Worker pods created.")
RESTARTS = Counter("elasticjob_restarts", "Restarts that count against the budget, by the kind of failure.", ["cause"])
LEADER = Gauge("elasticjob_leader", "1: this operator acts; 0: it stands by.")

_SECONDS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
RENDEZVOUS = Histogram(
    "elasticjob_rendezvous_seconds",
    "From what changed the worker group to the new one being agreed on.",
    ["reason"],
    buckets=_SECONDS,
)
RESUME = Histogram(
    "elasticjob_time_to_resume_seconds",
    "From what changed the worker group to the first step of the new one, as the training reports it.",
    ["reason"],
    buckets=_SECONDS,
)
STEPS_LOST = Counter(
    "elasticjob_steps_lost", "Training steps done again after a change of the worker group.", ["reason"]
)
RESIZE = Histogram(
    "elasticjob_resize_seconds", "From a changed number of workers to a worker group of that size.", buckets=_SECONDS
)


class _JobsByCondition(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield self._family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = self._family()
        for condition, count in sorted(self._counts().items()):
            family.add_metric([condition], count)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "elasticjob_jobs", "ElasticJobs for which this condition is True.", labels=["condition"]
        )


def count_jobs(counts: Callable[[], Mapping[str, int]]) -> Callable[[], None]:
    """`counts`: by condition, the jobs of which it is True. Returns what ends the counting."""
    collector = _JobsByCondition(counts)
    REGISTRY.register(collector)
    return lambda: REGISTRY.unregister(collector)


def count_request(method: str, path: str, query: Mapping[str, str], code: int) -> None:
    """`path` as the API server has it: /api/v1/namespaces/<namespace>/pods/<name>."""
    resource, has_name = _resource(path)
    verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(
        method, "get" if has_name else "list"
    )
    if "watch" in query:
        verb = "watch"
    API_REQUESTS.labels(verb, resource, str(code)).inc()
    if verb == "create" and resource == "pods" and code == 201 and "dryRun" not in query:
        PODS_CREATED.inc()


def _resource(path: str) -> tuple[str, bool]:
    """(resource[/subresource], whether one object is named)."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join(parts[:1] + parts[2:]), len(parts) > 1


@dataclasses.dataclass(slots=True)
class Restarts:
    """Counts restarts from what status says, each once; those before this process began are not counted."""

    _known: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    """By uid of the job and cause."""

    def see(self, body: Mapping[str, Any]) -> None:
        status, uid = body.get("status") or {}, str(body["metadata"]["uid"])
        causes = {cause: int(count) for cause, count in ((status.get("restarts") or {}).get("byCause") or {}).items()}
        known = self._known.get(uid)
        if known is None:
            self._known[uid] = causes
            return
        for cause, count in causes.items():
            more = count - known.get(cause, 0)
            if more > 0:  # a late word has an older, smaller number
                known[cause] = count
                RESTARTS.labels(cause).inc(more)

    def forget(self, body: Mapping[str, Any]) -> None:
        self._known.pop(str(body["metadata"]["uid"]), None)
