"""What is in a job's way, and what to do about it. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from elasticjob.names import REMEDY
from elasticjob.state import Condition, JobState, WorkerState

UNSEEN_SECONDS = 10
"""How old a job is before it counts as overlooked by the operator, s."""
PENDING_SECONDS = 30
"""How long a worker pod may be starting before it is mentioned, s."""
REPEATED_SECONDS = 60
"""How long a round may train what was trained before, before it is mentioned, s."""


REMEDIES: Mapping[str, str] = {
    "InvalidSpec": (
        "The operator is older or newer than the job's API: run `elasticjob doctor`, and upgrade the operator."
    ),
    "ValueNotUnderstood": (
        "Another program writes to this etcd, or agents of another version: use an etcd of the job's own."
    ),
    "StoreStarting": (
        "See why worker pod 0 does not start: kubectl describe pod -n {namespace} -l "
        "elasticjob.dev/job-name={name},elasticjob.dev/worker-index=0"
    ),
    "WaitingForRendezvous": "Read the agents' messages: elasticjob logs {name}",
    "WaitingForWorkers": (
        "See what the worker pods wait for: kubectl get pods -n {namespace} -l elasticjob.dev/job-name={name}"
    ),
    "NoProgress": "See what the worker processes do: elasticjob logs {name} --since 10m",
    "WorkersMissing": "See what the missing worker pods wait for, below.",
    "WorkersFailed": "Read {what}: elasticjob logs {name}",
    "MaxRestartsExceeded": (
        "Read {what}: elasticjob logs {name}. After fixing the cause, submit the job again: it continues from its "
        "last checkpoint."
    ),
    "FailedByRule": (
        "A rule in spec.failurePolicy.rules fails the job on this failure. Read the log: elasticjob logs {name}"
    ),
    "RuntimeUnusable": (
        "Name the image's Python in the command (python3 on Debian), or use an image with Python 3.10 or newer."
    ),
    "ScriptFails": (
        "Fix the script, or the command of the template, and submit the job again. Read the log: elasticjob logs {name}"
    ),
    "DeadlineExceeded": (
        "Submit it again with a longer spec.lifecycle.activeDeadlineSeconds: it continues from its last checkpoint."
    ),
    "StartupDeadlineExceeded": "See above why it did not start, and submit it again.",
    "ScaleUpDelayed": "No action is needed: it starts spec.scaling.scaleUpDelaySeconds after the request.",
    "Suspended": "Resume it: elasticjob resume {name}",
}
"""Reason of a condition -> what to do, where the condition's message does not say it. Reasons that need nothing are not
listed."""

_TRANSIENT = frozenset({"Suspending", "Suspended", "Finished", "NotAccepted"})
"""Reasons that say nothing that another condition does not say."""
_OF_START = ("Accepted", "Queued", "RendezvousReady", "Running")
"""Conditions that say why a job does not train yet, in the order in which it goes through them."""
_WHEN_TRUE = ("Failed", "Stalled", "Degraded", "StragglersFound", "NodesSuspected")


@dataclass(frozen=True)
class Obstacle:
    what: str
    remedy: str = ""
    serious: bool = True
    """Whether the job cannot train because of it."""


def obstacles(job: JobState, workers: Sequence[WorkerState], now: datetime.datetime) -> list[Obstacle]:
    """The most important first; empty if the job is fine."""
    return list(dict.fromkeys(_all(job, workers, now)))


def _all(job: JobState, workers: Sequence[WorkerState], now: datetime.datetime) -> Iterator[Obstacle]:
    if job.is_true("Succeeded"):
        return
    yield from _of_operator(job, now)
    if job.is_true("Suspended") and not job.is_queued:
        yield Obstacle("The job is suspended.", _remedy("Suspended", job), serious=False)
        return
    yield from _of_conditions(job)
    if job.is_true("Suspended"):
        return
    yield from _of_progress(job)
    if not job.is_finished:
        yield from nothing_survives(job)
        yield from _of_workers(job, workers, now)
        for node, failures in job.failing_nodes:
            yield Obstacle(
                f"{failures} failures within the last hour were on node {node}.",
                f"If the node is faulty, keep pods away from it: kubectl cordon {node}",
                serious=False,
            )


def _of_operator(job: JobState, now: datetime.datetime) -> Iterator[Obstacle]:
    if job.managed_by not in ("", "elasticjob.dev/operator"):
        yield Obstacle(f"The job is managed by {job.managed_by}, not by the ElasticJob operator.", serious=False)
        return
    old = job.created is None or (now - job.created).total_seconds() > UNSEEN_SECONDS
    if not job.is_seen and old:
        yield Obstacle(
            "No operator has picked up the job.",
            "Check that the operator runs and watches this namespace: elasticjob doctor",
        )
    elif job.observed_generation is not None and job.observed_generation < job.generation:
        yield Obstacle(
            "The operator has not seen the last change of the job yet.",
            "If it stays like this, check the operator: elasticjob doctor",
            serious=False,
        )


def _of_conditions(job: JobState) -> Iterator[Obstacle]:
    told: set[str] = set()
    for type_ in _OF_START:
        condition = job.conditions.get(type_)
        if condition is None or job.is_finished or condition.reason in told | _TRANSIENT:
            continue
        if condition.is_true is not (type_ == "Queued"):
            continue
        told.add(condition.reason)
        yield _obstacle(condition, job, serious=type_ != "Queued" or not _takes_its_turn(condition))
    for type_, well in (("Accepted", True), ("Queued", False)):  # which may say more although all is well
        condition = job.conditions.get(type_)
        if condition is not None and condition.is_true is well and REMEDY in condition.message and not job.is_finished:
            yield _obstacle(condition, job, serious=False)
    for type_ in _WHEN_TRUE:
        condition = job.conditions.get(type_)
        if condition is not None and condition.is_true:
            yield _obstacle(condition, job, serious=type_ in ("Failed", "Stalled"))


def _takes_its_turn(queued: Condition) -> bool:
    """Whether the job may leave its queue without anyone's action."""
    _, _, remedy = queued.message.partition(REMEDY)
    return queued.reason in ("WaitingForChecks", "Requeued") or remedy.startswith("nothing")


def _obstacle(condition: Condition, job: JobState, *, serious: bool) -> Obstacle:
    what, _, remedy = condition.message.partition(REMEDY)
    return Obstacle(what or condition.reason, remedy or _remedy(condition.reason, job), serious)


def nothing_survives(job: JobState) -> Iterator[Obstacle]:
    """A warning, if the job mounts no volume that outlives its worker pods."""
    if not job.keeps_files:
        yield Obstacle(
            "No volume outlives the worker pods: if all are lost or the job is suspended, training starts again from "
            "step 0, unless the script saves elsewhere.",
            "Mount a PersistentVolumeClaim for checkpoints: spec.checkpoint.volume, or --checkpoint-claim of submit.",
            serious=False,
        )


def _of_progress(job: JobState) -> Iterator[Obstacle]:
    """The newest round went back a long way."""
    newest = next((entry for entry in reversed(job.history) if entry.type == "Round"), None)
    if newest is None or newest.step is None or not newest.steps_lost:
        return
    rate = job.progress.steps_per_second if job.progress else None
    again = newest.steps_lost / rate if rate else 0.0
    if 2 * newest.steps_lost > newest.step or again > REPEATED_SECONDS:
        yield Obstacle(
            f"Round {newest.round} went back from step {newest.step} to {max(0, newest.step - newest.steps_lost)}.",
            "Save more often, to a volume that lasts, or train in an ElasticSession. The log says what each round "
            f"continued from: elasticjob logs {job.name}",
            serious=False,
        )


def _of_workers(job: JobState, workers: Sequence[WorkerState], now: datetime.datetime) -> Iterator[Obstacle]:
    """Problems of worker pods that no condition reports."""
    told = " ".join(condition.message for condition in job.conditions.values())
    for worker in workers:
        waits = (now - worker.created).total_seconds() if worker.created else 0.0
        if worker.name in told or worker.is_over or worker.ready or waits < PENDING_SECONDS:
            continue
        if worker.problem or worker.phase == "Pending":
            detail = f": {worker.detail}" if worker.detail else ""
            yield Obstacle(
                f"{worker.name} is {worker.problem or 'pending'}{detail}",
                f"kubectl describe pod {worker.name} -n {job.namespace}",
                serious=False,
            )


def _remedy(reason: str, job: JobState) -> str:
    has_traceback = job.failure is not None and "\n" in job.failure.message
    what = "the traceback above and the log" if has_traceback else "the log"
    values = {"name": job.name, "namespace": job.namespace, "image": job.image, "least": job.least, "what": what}
    return REMEDIES.get(reason, "").format(**values)
