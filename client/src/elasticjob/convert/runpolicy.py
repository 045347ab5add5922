"""The run policy that Kubeflow's operators share: how a job ends, how often it restarts, how it is scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.convert.draft import Draft
from elasticjob.convert.paths import Path, get
from elasticjob.convert.sizes import MIN, RESTARTS, set_backoff_limit
from elasticjob.convert.table import Field, carried, changed, computed, lost
from elasticjob.convert.template import TEMPLATE

PRIORITY = "spec.scheduling.priorityClassName"
METRICS, MANAGED_BY = "spec.scaling.metrics", "spec.managedBy"
WHOLE_GROUP = "counts restarts of the whole group; lost and preempted worker pods do not count"
NO_POD_GROUPS = "a PodGroup is part of the job, and is for minReplicas worker pods"
_OWN_CONTROLLERS = ("kubeflow.org/training-operator", "trainer.kubeflow.org/trainjob-controller")

_GANG = "set spec.scheduling.gang, so that minReplicas worker pods start together: see docs/guides/queueing.md"
_QUEUE = "add the annotation scheduling.volcano.sh/queue-name, with spec.scheduling.gang: see docs/guides/queueing.md"


def run_policy(at: str) -> tuple[Field, ...]:
    """The rows of a run policy at this path."""
    scheduling = f"{at}.schedulingPolicy"
    return (
        carried(f"{at}.cleanPodPolicy", "spec.lifecycle.cleanPods", of=str),
        carried(f"{at}.ttlSecondsAfterFinished", "spec.lifecycle.ttlSecondsAfterFinished"),
        carried(f"{at}.activeDeadlineSeconds", "spec.lifecycle.activeDeadlineSeconds"),
        changed(f"{at}.backoffLimit", RESTARTS, WHOLE_GROUP),
        carried(f"{at}.suspend", "spec.suspend", of=bool),
        computed(f"{at}.managedBy", MANAGED_BY),
        lost(f"{scheduling}.minAvailable", NO_POD_GROUPS, _GANG),
        lost(f"{scheduling}.queue", "it is an annotation of the job", _QUEUE),
        lost(f"{scheduling}.minResources", "the scheduler counts what the worker pods ask for", _GANG),
        computed(f"{scheduling}.priorityClass", PRIORITY),
        lost(
            f"{scheduling}.scheduleTimeoutSeconds",
            "it bounds the wait of a PodGroup",
            "set spec.lifecycle.startupDeadlineSeconds to let a job fail that does not start in time",
        ),
    )


def set_managed_by(draft: Draft, document: Mapping[str, Any], path: Path) -> None:
    """A controller that manages the job in place of ours."""
    value = get(document, path)
    if value in _OWN_CONTROLLERS:
        draft.irrelevant(path, "names the operator that the job comes from")
    elif isinstance(value, str) and "/" in value:
        draft.set(MANAGED_BY, value)
    elif value is not None:
        draft.lost(path, f"{value!r} is not a domain-prefixed name", f"set {MANAGED_BY}")


def set_run_policy(draft: Draft, document: Mapping[str, Any], at: Path) -> None:
    """What depends on other fields. After the fields that can be carried by themselves, and the template."""
    set_backoff_limit(draft, get(document, (*at, "backoffLimit")), (*at, "backoffLimit"))
    set_managed_by(draft, document, (*at, "managedBy"))
    path = (*at, "schedulingPolicy", "priorityClass")
    priority, of_template = get(document, path), get(draft.get(TEMPLATE), ("spec", "priorityClassName"))
    if priority and of_template not in (None, priority):
        draft.lost(path, f"the pod template has another one, {of_template}, which is kept")
    elif priority:
        draft.set(PRIORITY, priority)


def set_metrics(draft: Draft, document: Mapping[str, Any], path: Path, at: Path = ()) -> None:
    """Metrics need a range of sizes. `at`: where the document is, for the notes."""
    metrics = get(document, path)
    if metrics and draft.get(MIN) is None:
        why = "an autoscaler needs a range of sizes, and this job has one size"
        draft.lost((*at, *path), why, "set minReplicas below maxReplicas, and scaling.metrics")
    elif metrics:
        draft.set(METRICS, metrics)
