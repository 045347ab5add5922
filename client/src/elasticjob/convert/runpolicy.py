"""The run policy that Kubeflow's operators share: how a job ends, how often it restarts, how it is scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.convert.draft import Draft
from elasticjob.convert.paths import Path, get
from elasticjob.convert.sizes import MAX, MAX_RESTARTS, MIN, RESTARTS
from elasticjob.convert.table import Field, carried, changed, computed, lost
from elasticjob.convert.values import boolean, clean_pods, managed_by, positive_seconds, whole_number

PRIORITY = "spec.scheduling.priorityClassName"
METRICS = "spec.scaling.metrics"

_QUEUE = "use a queue such as Kueue, which admits all worker pods together: see docs/queueing.md"


def run_policy(at: str) -> tuple[Field, ...]:
    """The rows of a run policy at this path."""
    scheduling = f"{at}.schedulingPolicy"
    return (
        carried(f"{at}.cleanPodPolicy", "spec.lifecycle.cleanPods", convert=clean_pods),
        carried(f"{at}.ttlSecondsAfterFinished", "spec.lifecycle.ttlSecondsAfterFinished", convert=whole_number),
        carried(f"{at}.activeDeadlineSeconds", "spec.lifecycle.activeDeadlineSeconds", convert=positive_seconds),
        changed(
            f"{at}.backoffLimit",
            RESTARTS,
            "counts restarts of the whole group; lost and preempted worker pods do not count",
        ),
        carried(f"{at}.suspend", "spec.lifecycle.suspend", convert=boolean),
        carried(f"{at}.managedBy", "spec.managedBy", convert=managed_by),
        lost(
            f"{scheduling}.minAvailable",
            "the operator does not create PodGroups; a job starts once minReplicas worker pods are ready",
            _QUEUE,
        ),
        lost(f"{scheduling}.queue", "ElasticJobs have no Volcano queue", _QUEUE),
        lost(f"{scheduling}.minResources", "the operator does not create PodGroups", _QUEUE),
        computed(f"{scheduling}.priorityClass", PRIORITY),
        lost(
            f"{scheduling}.scheduleTimeoutSeconds",
            "it bounds the wait of a PodGroup",
            "set spec.lifecycle.startupDeadlineSeconds to let a job fail that does not start in time",
        ),
    )


def set_run_policy(draft: Draft, document: Mapping[str, Any], at: Path) -> None:
    """What depends on other fields. After the fields that can be carried by themselves, and the template."""
    limit, path = get(document, (*at, "backoffLimit")), (*at, "backoffLimit")
    if limit is not None:
        set_backoff_limit(draft, limit, path)
    priority = get(document, (*at, "schedulingPolicy", "priorityClass"))
    of_template = draft.get("spec.workers.template.spec.priorityClassName")
    if priority and of_template not in (None, priority):
        path = (*at, "schedulingPolicy", "priorityClass")
        draft.lost(path, f"the pod template has another one, {of_template}, which is kept")
    elif priority:
        draft.set(PRIORITY, priority)


def set_backoff_limit(draft: Draft, limit: Any, path: Path) -> None:
    """A limit of retries that is not the one of the launcher."""
    budget = draft.get(RESTARTS)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_RESTARTS:
        draft.lost(path, f"{limit!r} is not a number from 0 to {MAX_RESTARTS}", f"set {RESTARTS}")
    elif budget is None:
        draft.set(RESTARTS, limit)
    else:
        why = f"an ElasticJob has one budget of restarts, which is already set to {budget}"
        draft.lost(path, why, f"raise {RESTARTS} if you relied on retries of pods too")


def check_metrics(draft: Draft, path: Path) -> None:
    """Metrics need a range of sizes."""
    if draft.get(METRICS) and draft.get(MIN) == draft.get(MAX):
        draft.set(METRICS, [])
        why = "an autoscaler needs a range of sizes, and this job has one size"
        draft.lost(path, why, "set minReplicas below maxReplicas, and scaling.metrics")
    if draft.get(METRICS) == []:
        draft.unset(METRICS)
