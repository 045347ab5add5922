"""What a queue allows a job, and what is written to its Workloads, state by state.

The Workloads look as stock Kueue 0.19.2 writes them.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest
from elasticjob_api import ConditionType, ElasticJob, Reason
from elasticjob_api.fields import format_time
from elasticjob_operator.kube.cache import to_bytes
from elasticjob_operator.names import ANNOTATION_WITHDRAWN, LABEL_TEMPLATE
from elasticjob_operator.queue_state import (
    Assignment,
    Flavor,
    Placement,
    PodPriority,
    QueueView,
    Withdrawals,
    Workload,
    WorkloadPart,
)
from elasticjob_operator.queueing import bodies
from elasticjob_operator.queueing.bodies import workload
from elasticjob_operator.queueing.grant import Grant, grant, releases
from elasticjob_operator.queueing.job import Change, QueuedJob, base_missing_since
from elasticjob_operator.queueing.placement import placement
from elasticjob_operator.resources.placement import place
from elasticjob_operator.state import Pod

from tests.unit.operator.builders import NAME, NOW, UID, make_job, make_pod, make_status

HASH = "h1"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
ETCD = {
    "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "etcd", "image": "etcd", "resources": {}}]}}}
}


def queued_job(
    replicas: int = 4,
    least: int = 2,
    *,
    queue: str = "team",
    priority: str = "",
    workers: Any = None,
    template: Any = None,
    **spec: Any,
) -> ElasticJob:
    job = make_job(replicas=replicas, min=least, spec=spec or None, workers=workers, template=template)
    labels = {QUEUE: queue, **({PRIORITY: priority} if priority else {})}
    return job.model_copy(
        update={
            "metadata": job.metadata.model_copy(
                update={"labels": {key: value for key, value in labels.items() if value}}
            )
        }
    )


def running_job(size: int, **fields: Any) -> ElasticJob:
    """As its status says while it has that many worker pods."""
    return queued_job(**fields).model_copy(update={"status": make_status(desired_replicas=size or None)})


def condition(type_: str, status: bool = True, reason: str = "Test", message: str = "") -> dict[str, Any]:
    return {
        "type": type_,
        "status": str(status),
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T11:55:00Z",
    }


def made(
    name: str, part: WorkloadPart, count: int, *true: str, more: tuple[dict[str, Any], ...] = (), **fields: Any
) -> Workload:
    reserved = "QuotaReserved" in true
    etcd = [{"name": "etcd", "count": 1, "template": {"spec": {}}}] if part is WorkloadPart.BASE else []
    pod_sets = [{"name": "workers", "count": count, "template": {"spec": {}}}, *etcd]
    assignments = {"workers": Assignment(flavors=("spot",)), "etcd": Assignment(flavors=("spot",))} if reserved else {}
    known = {
        "uid": f"uid-{name}",
        "owner_uid": "job",
        "version": "7",
        "template_hash": HASH,
        "queue": "team",
        "priority": 0,
        "counts": {"workers": count},
        "pod_sets_json": to_bytes(pod_sets),
        "assignments": assignments,
        "conditions": (*(condition(item) for item in true), *more),
        **fields,
    }
    return Workload(name=name, part=part, **known)


ADMITTED = ("QuotaReserved", "Admitted")
PREEMPTED = condition("Evicted", reason="Preempted", message="Preempted to accommodate a workload (UID: 7)")


def base(*true: str, count: int = 2, **fields: Any) -> Workload:
    return made(NAME, WorkloadPart.BASE, count, *true, **fields)


def surplus(number: int, *true: str, count: int = 1, **fields: Any) -> Workload:
    known: dict[str, Any] = {"priority": -1, **fields}
    return made(f"{NAME}-surplus-{number}", WorkloadPart.SURPLUS, count, *true, **known)


def pods(*workloads: str, ready: bool = True) -> list[Pod]:
    """One worker pod for each name of a Workload; "": of the base, by its name."""
    return [
        dataclasses.replace(make_pod(index, ready=ready), workload=workload) for index, workload in enumerate(workloads)
    ]


def allowed(
    *workloads: Workload,
    job: ElasticJob | None = None,
    pods: list[Pod] | None = None,
    problem: str = "",
    accepted: bool = True,
    priorities: dict[str, int] | None = None,
    pod_priorities: dict[str, PodPriority] | None = None,
    foreign: tuple[Workload, ...] = (),
    missing_for: float | None = None,
    taken: frozenset[str] = frozenset(),
) -> Grant:
    view = QueueView(
        problem=problem,
        workloads=workloads,
        foreign=foreign,
        taken=taken,
        base_missing_since=NOW - datetime.timedelta(seconds=missing_for) if missing_for is not None else None,
        flavors={"spot": Flavor(node_labels={"pool": "spot"}, tolerations=({"key": "spot", "operator": "Exists"},))},
        priorities=priorities or {},
        pod_priorities=pod_priorities or {},
    )
    return grant(
        QueuedJob(
            job=job or queued_job(),
            view=view,
            pods=pods or [],
            template_hash=HASH,
            etcd=ETCD,
            accepted=accepted,
            now=NOW,
        )
    )


def written(found: Grant | tuple[Change, ...]) -> list[str]:
    """What is written, in short."""
    changes = found.changes if isinstance(found, Grant) else found
    return [in_short(change) for change in changes]


def in_short(change: Change) -> str:
    if change.create is not None:
        counts = "+".join(str(pod_set["count"]) for pod_set in change.create["spec"]["podSets"])
        return f"create {change.create['metadata']['name']} {counts}"
    assert change.workload is not None
    if change.delete:
        return f"delete {change.workload.name}"
    assert change.patch is not None
    assert change.patch["metadata"]["resourceVersion"] == "7", "only what was observed is changed"
    if "ownerReferences" in change.patch["metadata"]:
        return f"own {change.workload.name}"
    if "annotations" in change.patch["metadata"]:
        return f"annotate {change.workload.name} {change.patch['metadata']['annotations'][ANNOTATION_WITHDRAWN]}"
    if "status" not in change.patch:
        return f"patch {change.workload.name} {'+'.join(change.patch['spec'])}"
    assert change.of_status
    before = {item["type"]: item for item in change.workload.conditions}
    now = {condition["type"]: condition for condition in change.patch["status"]["conditions"]}
    assert before.keys() <= now.keys(), "a merge patch replaces the list"
    changed = [f"{key}={item['status']}" for key, item in now.items() if before.get(key) != item]
    return f"status {change.workload.name} {' '.join(changed)}"


def admitted_at(minutes: float) -> dict[str, Any]:
    """Admitted so many minutes before NOW."""
    since = NOW - datetime.timedelta(minutes=minutes)
    return {**condition("Admitted"), "lastTransitionTime": format_time(since)}


FIRST, SECOND = f"{NAME}-surplus-0", f"{NAME}-surplus-1"
TWO, THREE, FOUR = pods(NAME, NAME), pods(NAME, NAME, FIRST), pods(NAME, NAME, FIRST, SECOND)

WAITS, RUNS, READY = base(), base(*ADMITTED), base(*ADMITTED, "PodsReady")
EVICTED = base(*ADMITTED, more=(PREEMPTED,))
ENDING = base(*ADMITTED, terminating=True)
EVICTED_ENDING = base(*ADMITTED, terminating=True, more=(PREEMPTED,))
REJECTED = base("QuotaReserved", more=(condition("Evicted", reason="AdmissionCheck"),))
DEACTIVATED = base(*ADMITTED, active=False, more=(condition("Evicted", reason="Deactivated"),))
"""Of the base."""

MORE_WAITS, MORE_RUNS, MORE_READY = surplus(0), surplus(0, *ADMITTED), surplus(0, *ADMITTED, "PodsReady")
MORE_EVICTED = surplus(0, *ADMITTED, more=(PREEMPTED,))
TWO_READY = surplus(0, *ADMITTED, "PodsReady", count=2)
"""Of the first surplus."""

RELEASED = "QuotaReserved=False Admitted=False Requeued={} PodsReady=False"
RELEASES, RELEASES_FOR_GOOD = f"status {NAME} {RELEASED.format(True)}", f"status {NAME} {RELEASED.format(False)}"


@pytest.mark.parametrize(
    ("workloads", "running", "held", "reason", "writes"),
    [
        ([], [], True, Reason.WAITING_FOR_QUOTA, [f"create {NAME} 2+1"]),
        ([WAITS], [], True, Reason.WAITING_FOR_QUOTA, []),
        ([base("QuotaReserved")], [], True, Reason.WAITING_FOR_CHECKS, []),
        ([base(terminating=True)], [], True, Reason.WAITING_FOR_QUOTA, []),
        ([base(active=False)], [], True, Reason.DEACTIVATED, []),
        # Gone while it runs: Kueue was removed, or someone deleted it. It goes on until there is one that waits.
        ([], TWO, False, Reason.WAITING_FOR_QUOTA, [f"create {NAME} 2+1"]),
        ([WAITS], TWO, True, Reason.WAITING_FOR_QUOTA, []),
        # Evicted: quota is given back after the last pod, in one write, and surplus does not return by itself.
        ([EVICTED], TWO, True, Reason.EVICTED, []),
        ([EVICTED], [], True, Reason.EVICTED, [RELEASES]),
        ([EVICTED, MORE_RUNS, surplus(1)], THREE, True, Reason.EVICTED, [f"delete {SECOND}"]),
        ([EVICTED, MORE_RUNS], [], True, Reason.EVICTED, [f"delete {FIRST}", RELEASES]),
        # A rejected check evicts what is only reserved: Evicted comes before Admitted.
        ([REJECTED], [], True, Reason.EVICTED, [RELEASES_FOR_GOOD]),
        ([DEACTIVATED], [], True, Reason.DEACTIVATED, [RELEASES_FOR_GOOD]),
        # Being deleted, and held by a finalizer: its quota counts until then, and may be wanted.
        ([ENDING], TWO, False, Reason.WAITING_FOR_QUOTA, []),
        ([base(terminating=True)], TWO, True, Reason.WAITING_FOR_QUOTA, []),
        ([EVICTED_ENDING], TWO, True, Reason.EVICTED, []),
        ([EVICTED_ENDING], [], True, Reason.EVICTED, [RELEASES]),
        # Released before: in the queue again, though Kueue leaves Evicted as it is.
        ([base(more=(PREEMPTED, condition("QuotaReserved", False)))], [], True, Reason.WAITING_FOR_QUOTA, []),
        # Changed: another template or queue, or more than was admitted.
        ([base(*ADMITTED, template_hash="h0")], TWO, True, Reason.REQUEUED, []),
        ([base(*ADMITTED, template_hash="h0")], [], True, Reason.REQUEUED, [f"delete {NAME}"]),
        ([base(*ADMITTED, "Finished")], TWO, True, Reason.REQUEUED, []),
        ([base(*ADMITTED, "Finished")], [], True, Reason.REQUEUED, [f"delete {NAME}"]),
        ([base(*ADMITTED, "Finished", terminating=True)], [], True, Reason.REQUEUED, []),
        ([base(*ADMITTED, queue="other")], [], True, Reason.REQUEUED, [f"delete {NAME}"]),
        ([base(*ADMITTED, count=1)], TWO, True, Reason.REQUEUED, []),
        ([base(count=1)], [], True, Reason.WAITING_FOR_QUOTA, [f"patch {NAME} podSets"]),
        # Admitted.
        ([RUNS], [], False, Reason.PARTLY_ADMITTED, []),
        ([RUNS], TWO, False, Reason.PARTLY_ADMITTED, [f"status {NAME} PodsReady=True"]),
        ([READY], TWO, False, Reason.PARTLY_ADMITTED, [f"create {FIRST} 1"]),
        ([READY, MORE_WAITS], TWO, False, Reason.PARTLY_ADMITTED, []),
        (
            [READY, MORE_RUNS],
            THREE,
            False,
            Reason.PARTLY_ADMITTED,
            [f"status {FIRST} PodsReady=True", f"create {SECOND} 1"],
        ),
        ([READY, MORE_READY, surplus(1, *ADMITTED, "PodsReady")], FOUR, False, Reason.ADMITTED, []),
        # A surplus is evicted: its pods leave first, it returns to the queue, and nothing more is asked for meanwhile.
        ([READY, MORE_EVICTED], THREE, False, Reason.SURPLUS_EVICTED, []),
        ([READY, MORE_EVICTED], TWO, False, Reason.SURPLUS_EVICTED, [f"status {FIRST} {RELEASED.format(True)}"]),
    ],
)
def test_job_runs_exactly_while_its_base_is_admitted_and_gives_quota_back_after_its_last_pod(
    workloads: list[Workload], running: list[Pod], held: bool, reason: Reason, writes: list[str]
) -> None:
    found = allowed(*workloads, job=running_job(len(running)), pods=running)
    assert (found.held, found.queued.reason, written(found)) == (held, reason, writes)
    assert found.queued.status is held


@pytest.mark.parametrize(
    ("replicas", "workloads", "running", "admitted", "leaving", "writes"),
    [
        (2, [READY, MORE_RUNS], THREE, 2, {"surplus-0"}, []),
        (2, [READY, MORE_RUNS], TWO, 2, {"surplus-0"}, ["delete surplus-0"]),
        (2, [READY, MORE_WAITS], TWO, 2, {"surplus-0"}, ["delete surplus-0"]),
        (3, [READY, MORE_READY, surplus(1)], THREE, 3, {"surplus-1"}, ["delete surplus-1"]),
        # What is admitted is kept before what waits.
        (3, [READY, MORE_WAITS, surplus(1, *ADMITTED, "PodsReady")], TWO, 3, {"surplus-0"}, ["delete surplus-0"]),
        # Part of a surplus is given back in place, once its pods have left.
        (3, [READY, TWO_READY], pods(NAME, NAME, FIRST, FIRST), 3, set(), []),
        (3, [READY, TWO_READY], THREE, 3, set(), ["patch surplus-0 podSets"]),
        (4, [READY, TWO_READY], pods(NAME, NAME, FIRST, FIRST), 4, set(), []),
        # minReplicas was lowered: so much of the base is given back.
        (2, [base(*ADMITTED, "PodsReady", count=3)], pods(NAME, NAME, NAME), 2, set(), []),
        (2, [base(*ADMITTED, "PodsReady", count=3)], TWO, 2, set(), [f"patch {NAME} podSets"]),
        # A surplus that leaves does not count, even while the base replaces a worker pod: below minReplicas, the whole
        # job would be requeued.
        (
            3,
            [READY, surplus(0, *ADMITTED, count=2, more=(PREEMPTED,))],
            pods(NAME),
            2,
            {"surplus-0"},
            [f"status surplus-0 {RELEASED.format(True)}"],
        ),
        (
            3,
            [READY, surplus(0, "QuotaReserved", count=2, more=(admitted_at(11),))],
            pods(NAME),
            2,
            {"surplus-0"},
            [f"annotate {NAME} 1 2026-01-01T12:00:00Z", "delete surplus-0"],
        ),
    ],
)
def test_resize_asks_for_more_or_gives_back_what_is_not_used_and_never_requeues_the_base(
    replicas: int, workloads: list[Workload], running: list[Pod], admitted: int, leaving: set[str], writes: list[str]
) -> None:
    found = allowed(*workloads, job=queued_job(replicas), pods=running)
    shorter = [line.replace(f"{NAME}-surplus", "surplus") for line in written(found)]
    assert (found.held, found.replicas, shorter) == (False, admitted, writes)
    assert {item.replace(f"{NAME}-", "") for item in found.leaving} == leaving


@pytest.mark.parametrize(
    ("spec", "workers", "replicas", "count"),
    [
        ({}, {}, 8, 1),
        ({"scheduling": {"queue": {"step": 3}}}, {}, 8, 3),
        ({"scheduling": {"queue": {"step": 3}}}, {}, 4, 2),
        ({}, {"allowedReplicas": [2, 4, 8]}, 8, 2),
        # What is between two sizes could not be used.
        ({"scheduling": {"queue": {"step": 5}}}, {"allowedReplicas": [2, 4, 8]}, 8, 2),
        ({"scheduling": {"queue": {"step": 7}}}, {"allowedReplicas": [2, 4, 8]}, 8, 6),
        ({}, {"replicaSize": 2}, 8, 2),
        ({"scheduling": {"queue": {"step": 3}}}, {"replicaSize": 2}, 8, 2),
    ],
)
def test_surplus_has_a_step_or_as_many_worker_pods_as_the_next_allowed_size_needs(
    spec: dict[str, Any], workers: dict[str, Any], replicas: int, count: int
) -> None:
    job = queued_job(replicas, workers=workers, **spec)
    assert written(allowed(READY, job=job, pods=TWO)) == [f"create {FIRST} {count}"]


ONE = base(*ADMITTED, "PodsReady", count=1)
TWO_MORE = surplus(1, *ADMITTED, "PodsReady", count=2)
ONE_EVICTED = surplus(0, *ADMITTED, "PodsReady", more=(PREEMPTED,))


@pytest.mark.parametrize(
    ("workloads", "running", "replicas", "leaving", "most", "writes"),
    [
        # All of a surplus is of no use.
        ([READY, MORE_READY], [NAME, NAME], 2, {FIRST}, {}, [f"delete {FIRST}"]),
        ([READY, MORE_READY], [NAME, NAME, FIRST], 2, {FIRST}, {}, []),
        (
            [ONE, MORE_READY, surplus(1, *ADMITTED)],
            [NAME, SECOND],
            2,
            {FIRST},
            {},
            [f"delete {FIRST}", f"status {SECOND} PodsReady=True"],
        ),
        # Part of it, since another one is evicted.
        ([ONE, ONE_EVICTED, TWO_MORE], [NAME, FIRST, SECOND, SECOND], 2, {FIRST}, {SECOND: 1}, []),
        ([ONE, MORE_WAITS, TWO_MORE], [NAME, SECOND], 2, set(), {SECOND: 1}, [f"patch {SECOND} podSets"]),
        # The next one has as many as the next size needs.
        ([READY], [NAME, NAME], 2, set(), {}, [f"create {FIRST} 2"]),
        ([ONE, MORE_READY, TWO_MORE], [NAME, FIRST, SECOND, SECOND], 4, set(), {}, []),
        ([ONE, surplus(1, *ADMITTED, "PodsReady")], [NAME, SECOND], 2, set(), {}, [f"create {FIRST} 2"]),
    ],
)
def test_what_allowed_sizes_cannot_use_is_given_back(
    workloads: list[Workload],
    running: list[str],
    replicas: int,
    leaving: set[str],
    most: dict[str, int],
    writes: list[str],
) -> None:
    job = queued_job(4, min(2, workloads[0].counts["workers"]), workers={"allowedReplicas": [1, 2, 4]})
    found = allowed(*workloads, job=job, pods=pods(*running))
    assert (found.replicas, set(found.leaving), dict(found.most)) == (replicas, leaving, most)
    assert written(found) == writes
    assert found.queued.status is False


WANTS_CPU = {"spec": {"containers": [{"name": "trainer", "image": "t", "resources": {"requests": {"cpu": "100m"}}}]}}
LITTLE = [
    {
        "name": "workers",
        "count": 2,
        "template": {"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "1m"}}}]}},
    },
    {"name": "etcd", "count": 1, "template": {"spec": {}}},
]
"""podSets of a base that someone has changed."""


WITH_CPU = queued_job(template=WANTS_CPU)


def test_workload_that_waits_and_asks_for_less_than_its_pods_is_put_right_in_its_place() -> None:
    """Kueue would admit it at once."""
    little = to_bytes(LITTLE)
    (change,) = allowed(base(pod_sets_json=little), job=WITH_CPU).changes
    assert change.patch is not None
    assert (
        change.patch["spec"]["podSets"]
        == workload(WITH_CPU, WorkloadPart.BASE, count=2, template_hash=HASH, priority={}, etcd=ETCD)["spec"]["podSets"]
    )
    put_right = base(pod_sets_json=to_bytes(change.patch["spec"]["podSets"]))
    assert written(allowed(put_right, job=WITH_CPU)) == [], "once"
    for reserved in (base("QuotaReserved", pod_sets_json=little), base(*ADMITTED, pod_sets_json=little)):
        found = allowed(reserved, job=WITH_CPU)
        assert written(found) == [], "Kueue rejects it"
    assert "container trainer of podSet workers asks for 1m cpu instead of 100m" in found.queued.message


def test_surplus_that_waits_is_put_right() -> None:
    admitted = base(*ADMITTED, "PodsReady", pod_sets_json=to_bytes(bodies.pod_sets(WITH_CPU, 2, ETCD)))
    found = allowed(admitted, surplus(0, pod_sets_json=to_bytes(LITTLE[:1])), job=WITH_CPU, pods=TWO)
    (change,) = found.changes
    assert change.patch is not None
    (pod_set,) = change.patch["spec"]["podSets"]
    assert (pod_set["count"], pod_set["template"]["spec"]["nodeSelector"]) == (1, {"pool": "spot"})
    right = surplus(0, pod_sets_json=to_bytes([pod_set]))
    assert written(allowed(admitted, right, job=WITH_CPU, pods=TWO)) == [], "once"
    boosted = surplus(0, priority_class="low", priority=2_000_000_000)
    changed = allowed(READY, boosted, pods=TWO, priorities={"low": 10}).changes
    assert [change.patch["spec"] for change in changed if change.patch] == [{"priority": 10}]


def test_surplus_is_asked_for_with_a_lower_priority_and_the_nodes_of_the_base() -> None:
    found = allowed(base(*ADMITTED, "PodsReady", priority=100), pods=TWO)
    (change,) = found.changes
    assert change.create is not None
    spec = change.create["spec"]
    assert (spec["priority"], "priorityClassRef" in spec) == (99, False)
    assert spec["podSets"][0]["template"]["spec"]["nodeSelector"] == {"pool": "spot"}
    named = allowed(
        base(*ADMITTED, "PodsReady", priority=100),
        job=queued_job(scheduling={"queue": {"surplusPriorityClassName": "low"}}),
        pods=TWO,
        priorities={"low": 10},
    )
    assert named.changes[0].create is not None
    assert named.changes[0].create["spec"]["priority"] == 10
    assert named.changes[0].create["spec"]["priorityClassRef"]["name"] == "low"


def test_surplus_stays_below_its_base_when_the_priority_of_the_job_changes() -> None:
    """Otherwise, no job with a priority in between could get it back."""
    lower = base(*ADMITTED, "PodsReady", priority=10)
    waits, own = surplus(1, priority=999), surplus(2, priority=999, priority_class="burst")
    found = allowed(lower, surplus(0, *ADMITTED, "PodsReady", priority=999), waits, own, job=queued_job(5), pods=THREE)
    patches = [change.patch for change in found.changes]
    assert patches == [{"metadata": {"resourceVersion": "7"}, "spec": {"priority": 9}}] * 2
    assert written(found) == [f"patch {FIRST} priority", f"patch {SECOND} priority"]


def test_base_has_the_value_of_its_priority_class_and_follows_the_label() -> None:
    job = queued_job(priority="high")
    created = allowed(job=job, priorities={"high": 1000}).changes[0].create
    assert created is not None
    assert (created["spec"]["priority"], created["spec"]["priorityClassRef"]["name"]) == (1000, "high")
    assert created["spec"]["queueName"] == "team"
    assert created["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == job.uid
    assert [pod_set["name"] for pod_set in created["spec"]["podSets"]] == ["workers", "etcd"]
    assert written(allowed(WAITS, job=job, priorities={"high": 1000})) == [f"patch {NAME} priorityClassRef+priority"]


POD_CLASS = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "urgent"}
QUEUE_CLASS = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
URGENT = {"urgent": PodPriority(value=7)}
DEFAULT = {"urgent": PodPriority(value=7, is_default=True)}


@pytest.mark.parametrize(
    ("named", "of_pods", "classes", "expected"),
    [
        ("", "urgent", URGENT, (7, POD_CLASS)),
        ("high", "urgent", URGENT, (1000, QUEUE_CLASS)),
        # Pods that name no class have the cluster's default.
        ("", "", DEFAULT, (7, POD_CLASS)),
        ("", "", URGENT, (0, None)),
        # The operator may not read PriorityClasses, or there is none of that name, which the API server says of pods.
        ("", "urgent", {}, (0, None)),
    ],
)
def test_job_without_a_class_of_its_queue_waits_with_the_priority_of_its_pods(
    named: str, of_pods: str, classes: dict[str, PodPriority], expected: tuple[int, object]
) -> None:
    job = queued_job(priority=named, scheduling={"priorityClassName": of_pods})
    created = allowed(job=job, priorities={"high": 1000}, pod_priorities=classes).changes[0].create
    assert created is not None
    assert (created["spec"]["priority"], created["spec"].get("priorityClassRef")) == expected


@pytest.mark.parametrize(
    ("known", "changes"),
    [
        (WAITS, True),
        (base(priority_class="low"), True),
        (base(*ADMITTED, "PodsReady", priority_class="low"), True),
        # Kueue's webhook would reject these while quota is reserved.
        (READY, False),
        (base(*ADMITTED, "PodsReady", priority_class="urgent", has_pod_priority=True), False),
        (base(priority_class="high", priority=1000), False),
        # Someone has changed the value.
        (base(priority_class="high", priority=2_000_000_000), True),
    ],
)
def test_priority_of_a_workload_with_quota_changes_only_between_classes_of_its_queue(
    known: Workload, changes: bool
) -> None:
    found = allowed(known, job=queued_job(2, priority="high"), pods=[], priorities={"high": 1000, "low": 1})
    assert (f"patch {NAME} priorityClassRef+priority" in written(found)) is changes


@pytest.mark.parametrize("running", [False, True])
def test_missing_priority_class_is_named_and_stops_no_job_at_once(running: bool) -> None:
    pods = TWO if running else []
    found = allowed(job=running_job(len(pods), priority="hihg"), pods=pods, priorities={"high": 1})
    assert (found.held, found.queued.reason, written(found)) == (not running, Reason.PRIORITY_CLASS_MISSING, [])
    assert "hihg" in found.queued.message


def test_missing_priority_class_of_the_surplus_stops_only_growth() -> None:
    job = queued_job(scheduling={"queue": {"surplusPriorityClassName": "lwo"}})
    found = allowed(READY, job=job, pods=TWO)
    assert (found.held, found.replicas, written(found)) == (False, 2, [])
    assert found.queued.reason is Reason.PRIORITY_CLASS_MISSING


@pytest.mark.parametrize("running", [False, True])
def test_without_kueue_a_job_waits_and_one_that_trains_goes_on_at_its_size(running: bool) -> None:
    found = allowed(job=running_job(3), pods=THREE if running else [], problem="The API server does not serve it")
    assert (found.held, found.queued.reason, written(found)) == (not running, Reason.QUEUE_UNAVAILABLE, [])
    assert found.replicas == (3 if running else 0)


@pytest.mark.parametrize(
    ("workloads", "problem"), [((), ""), ((base(terminating=True),), ""), ((), "The API server does not serve it")]
)
def test_job_that_is_being_stopped_does_not_start_again_when_its_base_vanishes(
    workloads: tuple[Workload, ...], problem: str
) -> None:
    lost = MORE_RUNS
    found = allowed(*workloads, lost, job=running_job(0), pods=THREE, problem=problem)
    assert (found.held, found.queued.status, written(found)) == (True, True, [])


def test_nothing_is_asked_for_while_the_api_server_rejects_the_worker_pods() -> None:
    found = allowed(accepted=False)
    assert (written(found), found.queued.status, found.queued.reason) == ([], True, Reason.NOT_ACCEPTED)


@pytest.mark.parametrize(
    ("finished", "queue", "running", "writes"),
    [
        (False, "team", TWO, []),
        (False, "team", [], [f"delete {NAME}", f"delete {FIRST}"]),
        (True, "team", TWO, []),
        (True, "team", [], [f"delete {FIRST}", f"status {NAME} Finished=True"]),
        (False, "", TWO, [f"delete {NAME}", f"delete {FIRST}"]),
    ],
)
def test_suspended_finished_or_unqueued_job_gives_everything_back(
    finished: bool, queue: str, running: list[Pod], writes: list[str]
) -> None:
    job = queued_job(queue=queue)
    if finished:
        job = job.model_copy(update={"status": make_status(ConditionType.SUCCEEDED)})
    view = QueueView(workloads=(RUNS, MORE_RUNS))
    assert written(releases(job, view, running, NOW)) == writes


@pytest.mark.parametrize(
    ("annotation", "request_of_base"),
    [
        ({}, None),
        ({"kueue.x-k8s.io/podset-required-topology": "rack"}, {"required": "rack"}),
        ({"kueue.x-k8s.io/podset-preferred-topology": "block"}, {"preferred": "block"}),
        ({"kueue.x-k8s.io/podset-unconstrained-topology": "true"}, {"unconstrained": True}),
    ],
)
def test_base_asks_for_the_topology_of_the_template(
    annotation: dict[str, str], request_of_base: dict[str, Any] | None
) -> None:
    template = {"metadata": {"annotations": annotation}, "spec": {"containers": [{"name": "c"}]}}
    created = workload(
        make_job(template=template), WorkloadPart.BASE, count=2, template_hash=HASH, priority={"priority": 0}
    )
    assert created["spec"]["podSets"][0].get("topologyRequest") == request_of_base
    assert created["metadata"]["labels"][LABEL_TEMPLATE] == HASH


def test_etcd_of_the_job_goes_where_the_flavor_of_its_base_says() -> None:
    assert allowed(RUNS).etcd.node_selector == {"pool": "spot"}


def test_no_surplus_is_asked_for_while_the_api_server_rejects_the_worker_pods() -> None:
    assert written(allowed(READY, pods=TWO, accepted=False)) == []


@pytest.mark.parametrize("terminating", [False, True])
def test_worker_pods_without_a_workload_count_for_the_base_unless_they_are_ending(terminating: bool) -> None:
    """They were created while nothing was known of the queue."""
    running = [
        dataclasses.replace(pod, deletion_timestamp=NOW if terminating and not pod.index else None)
        for pod in pods("", "")
    ]
    ready = [] if terminating else [f"status {NAME} PodsReady=True"]
    assert written(allowed(RUNS, pods=running)) == ready
    assert written(allowed(EVICTED, pods=running)) == [], "its quota is in use"


STRAY = pods(NAME, NAME, "nothing")


@pytest.mark.parametrize(
    ("workloads", "held", "writes"),
    [
        ([READY, surplus(0, *ADMITTED, "PodsReady", more=(PREEMPTED,))], False, []),
        ([EVICTED, MORE_RUNS], True, []),
        ([EVICTED, MORE_WAITS], True, [f"delete {FIRST}"]),
    ],
)
def test_no_quota_is_given_back_while_a_worker_pod_names_a_workload_that_does_not_exist(
    workloads: list[Workload], held: bool, writes: list[str]
) -> None:
    """Anyone who may label pods could free quota that is in use."""
    found = allowed(*workloads, job=queued_job(3), pods=STRAY)
    assert (found.held, written(found)) == (held, writes)
    assert held or "nothing" in found.leaving, "its replacement has the right label"


def test_overdue_surplus_is_not_given_back_while_a_worker_pod_may_be_on_its_quota() -> None:
    late = surplus(0, "QuotaReserved", more=(admitted_at(11),))
    assert written(allowed(READY, late, job=queued_job(3), pods=STRAY)) == []


def test_no_part_of_a_surplus_is_given_back_while_a_worker_pod_may_be_on_its_quota() -> None:
    larger = TWO_READY
    running = pods(NAME, NAME, FIRST, "nothing")
    assert written(allowed(READY, larger, job=queued_job(3), pods=running)) == []


def test_worker_pods_go_where_flavor_and_checks_say_and_a_topology_gets_its_gate() -> None:
    added = Placement(labels={"check": "done"}, node_selector={"zone": "a"}, tolerations=({"key": "new"},))
    workload = base(*ADMITTED, updates={"workers": (added,)})
    workload = dataclasses.replace(workload, assignments={"workers": Assignment(flavors=("spot",), has_topology=True)})
    flavors = {"spot": Flavor(node_labels={"pool": "spot"}, tolerations=({"key": "spot"},))}
    pod: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}, "spec": {"tolerations": [{"key": "own"}]}}
    place(pod, placement(workload, "workers", flavors, {}))
    assert pod["metadata"] == {
        "labels": {"a": "b", "check": "done", "kueue.x-k8s.io/podset": "workers"},
        "annotations": {"kueue.x-k8s.io/workload": NAME, "kueue.x-k8s.io/podset-unconstrained-topology": "true"},
    }
    assert pod["spec"] == {
        "nodeSelector": {"pool": "spot", "zone": "a"},
        "tolerations": [{"key": "own"}, {"key": "spot"}, {"key": "new"}],
        "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}],
    }
    asked = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    assert "kueue.x-k8s.io/podset-unconstrained-topology" not in placement(workload, "workers", {}, asked).annotations


@pytest.mark.parametrize(
    ("minutes", "running", "leaving", "reason", "writes"),
    [
        (9, TWO, False, Reason.ADMITTED, []),
        (9, THREE, False, Reason.ADMITTED, ["status surplus-0 PodsReady=True"]),
        (11, THREE, False, Reason.ADMITTED, ["status surplus-0 PodsReady=True"]),
        # Its pods leave first; then its quota is given back, and the base says when more may be asked for.
        (11, [*TWO, *pods(FIRST, ready=False)], True, Reason.SURPLUS_WITHDRAWN, []),
        (11, TWO, True, Reason.SURPLUS_WITHDRAWN, [f"annotate {NAME} 1 2026-01-01T12:00:00Z", "delete surplus-0"]),
    ],
)
def test_surplus_whose_worker_pods_never_get_ready_is_given_back(
    minutes: float, running: list[Pod], leaving: bool, reason: Reason, writes: list[str]
) -> None:
    """With waitForPodsReady.blockAdmission, it would keep every other job waiting."""
    late = surplus(0, "QuotaReserved", more=(admitted_at(minutes),))
    found = allowed(READY, late, job=queued_job(3), pods=running)
    shorter = [line.replace(f"{NAME}-surplus", "surplus") for line in written(found)]
    assert (found.held, found.queued.reason, shorter) == (False, reason, writes)
    assert found.leaving == ({FIRST} if leaving else set())
    if minutes == 9 and running == TWO:
        assert found.requeue_at == NOW + datetime.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("count", "minutes", "waits"),
    [(1, 9, 1), (1, 10, None), (2, 19, 1), (2, 20, None), (4, 79, 1), (5, 119, 1), (100, 119, 1), (100, 120, None)],
)
def test_surplus_is_asked_for_again_after_twice_the_time(count: int, minutes: float, waits: int | None) -> None:
    before = Withdrawals(count=count, last=NOW - datetime.timedelta(minutes=minutes))
    found = allowed(base(*ADMITTED, "PodsReady", withdrawals=before), pods=TWO)
    assert written(found) == ([] if waits else [f"create {FIRST} 1"])
    assert found.requeue_at == (NOW + datetime.timedelta(minutes=waits) if waits else None)
    assert found.queued.reason is (Reason.SURPLUS_WITHDRAWN if waits else Reason.PARTLY_ADMITTED)
    assert ("It is asked for again at 12:01:00 UTC." in found.queued.message) is bool(waits)


@pytest.mark.parametrize(
    "last", ["9999-12-31T23:59:59+00:00", "2026-01-02T12:00:00+00:00", "0001-01-01T00:00:00+00:00"]
)
def test_withdrawal_at_a_time_that_cannot_be_counts_for_nothing(last: str) -> None:
    """Anyone who may patch a Workload may write any time there."""
    before = Withdrawals(count=3, last=datetime.datetime.fromisoformat(last))
    assert written(allowed(base(*ADMITTED, "PodsReady", withdrawals=before), pods=TWO)) == [f"create {FIRST} 1"]


@pytest.mark.parametrize("since", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59", "never"])
def test_surplus_with_a_time_that_cannot_be_is_not_overdue(since: str) -> None:
    admitted = {**condition("Admitted"), "lastTransitionTime": since}
    late = surplus(0, "QuotaReserved", more=(admitted,))
    found = allowed(READY, late, job=queued_job(3), pods=TWO)
    assert (written(found), found.requeue_at) == ([], None)


def test_surplus_that_gets_ready_ends_the_series() -> None:
    before = Withdrawals(count=3, last=NOW - datetime.timedelta(hours=3))
    job = queued_job(3)
    found = allowed(base(*ADMITTED, "PodsReady", withdrawals=before), MORE_RUNS, job=job, pods=THREE)
    assert written(found) == [f"annotate {NAME} None", f"status {FIRST} PodsReady=True"]
    ready = MORE_READY
    assert written(allowed(base(*ADMITTED, "PodsReady", withdrawals=before), ready, job=job, pods=THREE)) == []


@pytest.mark.parametrize(
    ("foreign", "says"),
    [
        (base(owner_uid=""), "kubectl delete workloads.kueue.x-k8s.io digits -n ml"),
        (base(owner_uid="", terminating=True), "still being deleted"),
        (base(owner_uid="another"), "still being deleted"),
    ],
)
@pytest.mark.parametrize("running", [False, True])
def test_workload_of_the_jobs_name_that_is_not_its_own_is_named(foreign: Workload, says: str, running: bool) -> None:
    """As `kubectl delete elasticjob --cascade=orphan` leaves it."""
    pods = TWO if running else []
    found = allowed(foreign=(foreign,), job=running_job(len(pods)), pods=pods)
    assert (found.held, found.queued.reason, written(found)) == (not running, Reason.WORKLOAD_REJECTED, [])
    assert says in found.queued.message


def test_surplus_takes_no_name_of_another_jobs_workload() -> None:
    found = allowed(READY, foreign=(surplus(0, owner_uid=""),), pods=TWO)
    assert written(found) == [f"create {SECOND} 1"]
    found = allowed(READY, taken=frozenset({FIRST}), pods=TWO)
    assert written(found) == [f"create {SECOND} 1"]


@pytest.mark.parametrize("running", [[], TWO])
def test_base_is_known_by_its_name_and_another_one_is_deleted(running: list[Pod]) -> None:
    """It would stop the job, and hold the quota of the real one."""
    fake = made("a-fake", WorkloadPart.BASE, 2)
    found = allowed(fake, READY, job=running_job(len(running), replicas=2), pods=running)
    assert (found.held, written(found)) == (False, ["delete a-fake"])
    assert found.slots[0].workload == NAME


def test_base_whose_label_says_surplus_stays_the_base() -> None:
    found = allowed(READY, job=queued_job(2), pods=TWO)
    relabelled = dataclasses.replace(READY, part=WorkloadPart.SURPLUS)
    assert allowed(relabelled, job=queued_job(2), pods=TWO) == found


def test_surplus_that_is_marked_as_finished_leaves_and_is_deleted() -> None:
    """Kueue has given its quota to others."""
    ended = surplus(0, *ADMITTED, "PodsReady", "Finished")
    found = allowed(READY, ended, job=queued_job(3), pods=THREE)
    assert (found.held, found.replicas, written(found)) == (False, 2, [])
    assert found.leaving == {ended.name}
    gone = allowed(READY, ended, job=queued_job(3), pods=TWO)
    assert written(gone) == [f"delete {ended.name}"]


@pytest.mark.parametrize(
    ("fields", "reason", "writes"),
    [
        ({}, Reason.WAITING_FOR_QUOTA, [f"create {NAME} 2+1"]),
        ({"accepted": False}, Reason.NOT_ACCEPTED, []),
        ({"job": running_job(2, priority="nosuch")}, Reason.PRIORITY_CLASS_MISSING, []),
        ({"foreign": (base(owner_uid=""),)}, Reason.WORKLOAD_REJECTED, []),
    ],
)
def test_job_that_trains_without_a_base_stops_after_a_minute(
    fields: dict[str, Any], reason: Reason, writes: list[str]
) -> None:
    """It may be on quota that others have got. Nothing is created until its last pod is gone."""
    known = {"job": running_job(2), **fields}
    trains = allowed(pods=TWO, missing_for=59, **known)
    assert (trains.held, trains.queued.status, trains.queued.reason, written(trains)) == (False, False, reason, writes)
    assert trains.requeue_at == NOW + datetime.timedelta(seconds=1)
    stops = allowed(pods=TWO, missing_for=60, **known)
    assert (stops.held, stops.queued.status, stops.queued.reason, written(stops)) == (True, True, reason, [])
    assert written(allowed(missing_for=60, **known)) == writes


def test_job_that_trains_goes_on_without_kueue_however_long() -> None:
    assert not allowed(job=running_job(2), pods=TWO, problem="not served", missing_for=3600).held


def test_base_is_missing_from_the_moment_when_it_was_first_not_there() -> None:
    job, before = queued_job(), NOW - datetime.timedelta(seconds=5)
    suspended = job.model_copy(update={"spec": job.spec.model_copy(update={"suspend": True})})
    none, there, away = QueueView(), QueueView(workloads=(WAITS,)), QueueView(problem="not served")
    assert base_missing_since(job, none, None, NOW) == NOW
    assert base_missing_since(job, none, before, NOW) == before
    assert base_missing_since(job, QueueView(workloads=(MORE_WAITS,)), before, NOW) == before
    for item, view in ((job, there), (job, away), (job, None), (suspended, none), (queued_job(queue=""), none)):
        assert base_missing_since(item, view, before, NOW) is None


OWNERLESS: dict[str, Any] = {"owner_uid": "", "job_uid": UID}


@pytest.mark.parametrize(
    ("lost", "running", "held", "reason", "writes"),
    [
        (base(*ADMITTED, "PodsReady", **OWNERLESS), TWO, False, Reason.ADMITTED, [f"own {NAME}"]),
        # It is obeyed meanwhile, and what else is to be written to it comes later.
        (base(*ADMITTED, more=(PREEMPTED,), **OWNERLESS), TWO, True, Reason.WORKLOAD_REJECTED, [f"own {NAME}"]),
        (base(*ADMITTED, more=(PREEMPTED,), **OWNERLESS), [], True, Reason.WORKLOAD_REJECTED, [f"own {NAME}"]),
        (base(*ADMITTED, "Finished", **OWNERLESS), TWO, True, Reason.WORKLOAD_REJECTED, [f"own {NAME}"]),
        # Not the job's own.
        (base(*ADMITTED, owner_uid="", job_uid="another"), [], True, Reason.WORKLOAD_REJECTED, []),
    ],
)
def test_job_owns_a_workload_again_whose_owner_was_removed(
    lost: Workload, running: list[Pod], held: bool, reason: Reason, writes: list[str]
) -> None:
    found = allowed(foreign=(lost,), job=running_job(len(running), replicas=2), pods=running)
    assert (found.held, found.queued.reason, written(found)) == (held, reason, writes)
    assert not held or f"kubectl delete workloads.kueue.x-k8s.io {NAME} -n ml" in found.queued.message


def test_job_owns_a_surplus_again_whose_owner_was_removed() -> None:
    lost, other = surplus(0, *ADMITTED, "PodsReady", **OWNERLESS), made("other", WorkloadPart.SURPLUS, 1, **OWNERLESS)
    found = allowed(READY, foreign=(lost, other), job=queued_job(3), pods=THREE)
    assert (found.held, found.replicas, written(found)) == (False, 3, [f"own {lost.name}"])
