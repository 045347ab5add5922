"""Prometheus metrics, in the default registry.

Recovery times are recorded by `etcd.recovery_metrics` from what agents report, jobs by condition by
`controller.job_cache`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from elasticjob_api.fields import OTHER_CAUSES
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import REGISTRY, Collector

RECONCILE = Histogram(
    "elasticjob_reconcile_seconds",
    "Duration of one reconciliation of a job, including writes, retries and waiting for a request slot, but not the "
    "wait in the queue.",
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
QUEUE_WAIT = Histogram(
    "elasticjob_queue_wait_seconds",
    "Time that a job waited to be reconciled, from the first event that queued it.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
QUEUE_DEPTH = Gauge("elasticjob_queue_depth", "Jobs waiting to be reconciled.")
QUEUE_AGE = Gauge("elasticjob_queue_oldest_seconds", "Longest time that a job in the queue has waited.")
PROGRESS_WAITING = Gauge(
    "elasticjob_progress_waiting",
    "Jobs whose progress waits for the budget of all jobs to be written.",
    ["object"],
)
PROGRESS_AGE = Gauge("elasticjob_progress_oldest_seconds", "Time that the oldest of them has waited.", ["object"])
LOOP_LAG = Histogram(
    "elasticjob_loop_lag_seconds",
    "How much later than due the event loop ran, four times a second: what each decision waits for.",
    buckets=(0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
API_REQUESTS = Counter(
    "elasticjob_api_requests", "Requests to the API server; code 0: no response.", ["verb", "resource", "code"]
)
PODS_CREATED = Counter("elasticjob_pods_created", "Worker pods created.")
ETCD_WRITE_ERRORS = Counter("elasticjob_etcd_write_errors", "Writes to jobs' etcds that failed; they are repeated.")
RESTARTS = Counter("elasticjob_restarts", "Restarts that count towards maxRestarts, by kind of failure.", ["cause"])
TIER_UP = Gauge("elasticjob_etcd_tier_up", "1: the etcd tier answers this operator.", ["tier"])
TIER_RUNS = Gauge("elasticjob_etcd_tier_runs", "Runs that use the etcd tier.", ["tier"])
TIER_BYTES = Gauge("elasticjob_etcd_tier_bytes", "What the database of the etcd tier has in use.", ["tier"])
TIER_LEASES = Gauge("elasticjob_etcd_tier_leases", "Leases in the etcd tier: one for each agent.", ["tier"])
LEADER = Gauge("elasticjob_leader", "1: this operator leads a shard of the jobs; 0: it is on standby.")
SHARD_LEADER = Gauge("elasticjob_shard_leader", "1: this operator leads that shard of the jobs.", ["shard"])
SHARD_JOBS = Gauge("elasticjob_shard_jobs", "Jobs of a shard, reported by the operator that leads it.", ["shard"])
SHARDS_DIVIDED = Gauge(
    "elasticjob_shards_divided",
    "1: this operator leads nothing, because another one with a different number of shards leads.",
)

_SECONDS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
RENDEZVOUS = Histogram(
    "elasticjob_rendezvous_seconds",
    "Time from a change of the worker group until the new round is agreed on.",
    ["reason"],
    buckets=_SECONDS,
)
RESUME = Histogram(
    "elasticjob_time_to_resume_seconds",
    "Time from a change of the worker group until the training reports the first step of the new round.",
    ["reason"],
    buckets=_SECONDS,
)
STEPS_LOST = Counter("elasticjob_steps_lost", "Training steps repeated after a change of the worker group.", ["reason"])
RESIZE = Histogram(
    "elasticjob_resize_seconds",
    "Time from a changed number of replicas until a worker group of that size.",
    buckets=_SECONDS,
)


CAUSES = frozenset(
    {
        *("ApplicationError", "Signal", "OutOfMemory", "Hang", "Stopped", "Unresponsive", "PeerLost", "WorkersStopped"),
        "CollectiveMismatch",
        *("InitContainerFailed", "StartError", "Terminated", "Evicted", "RuntimeUnusable"),
    }
)
"""The causes of restarts that are counted by name. Scripts may report any word, and a label's values are never
forgotten."""
MOST_RESTARTS, MOST_STEPS, MOST_SECONDS = 100, 1_000_000, 86_400.0
"""The most that one report of a job adds to a metric: jobs choose what they report."""


class _OfAllJobs(Collector):
    def __init__(self, *sums: Callable[[], Mapping[str, int]]) -> None:
        self._sums = tuple(zip((self._conditions, self._seconds, self._below), sums, strict=True))

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for make, _ in self._sums:
            yield make()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for make, values in self._sums:
            family = make()
            for label, value in sorted(dict(values()).items()):  # a copy: this runs in a thread
                family.add_metric([label], value)
            yield family

    @staticmethod
    def _conditions() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "elasticjob_jobs", "ElasticJobs for which this condition is True.", labels=["condition"]
        )

    @staticmethod
    def _seconds() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "elasticjob_wall_seconds",
            "What the time of all existing ElasticJobs was spent on: the sum of status.goodput.",
            labels=["part"],
        )

    @staticmethod
    def _below() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "elasticjob_jobs_below_goodput",
            "ElasticJobs that have not ended, are an hour old, and whose goodput is below this percentage.",
            labels=["percent"],
        )


def count_jobs(
    counts: Callable[[], Mapping[str, int]],
    seconds: Callable[[], Mapping[str, int]],
    below: Callable[[], Mapping[str, int]],
) -> Callable[[], None]:
    """`counts`: by condition type, the number of jobs for which it is True; `seconds`: by part of the goodput, of all
    jobs; `below`: by percentage, the number of jobs whose goodput is below it. Returns a function that unregisters
    them."""
    collector = _OfAllJobs(counts, seconds, below)
    REGISTRY.register(collector)
    return lambda: REGISTRY.unregister(collector)


async def measure_loop_lag(seconds: float = 0.25) -> None:
    """Until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + seconds
        await asyncio.sleep(seconds)
        LOOP_LAG.observe(max(0.0, loop.time() - due))


def count_request(method: str, path: str, query: Mapping[str, str], code: int) -> None:
    """`path`: such as /api/v1/namespaces/<namespace>/pods/<name>."""
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
    """Counts each restart in a job's status once, except those from before this process started."""

    _known: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    """By job UID and cause."""

    def see(self, body: Mapping[str, Any], *, count: bool = True) -> None:
        """`count`: False where another operator counts them."""
        status, uid = body.get("status") or {}, str(body["metadata"]["uid"])
        causes = {cause: int(number) for cause, number in ((status.get("restarts") or {}).get("byCause") or {}).items()}
        known = self._known.get(uid)
        if known is None:
            self._known[uid] = causes
            return
        for cause, number in causes.items():
            more = number - known.get(cause, 0)
            if more <= 0:
                continue  # a late event has an older, smaller number
            known[cause] = number
            if count:
                RESTARTS.labels(cause if cause in CAUSES else OTHER_CAUSES).inc(min(more, MOST_RESTARTS))

    def forget(self, body: Mapping[str, Any]) -> None:
        self._known.pop(str(body["metadata"]["uid"]), None)
