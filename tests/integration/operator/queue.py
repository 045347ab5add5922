"""A queue of jobs that acts towards ElasticJobs as Kueue does, by the contract of its job integrations (`GenericJob` of
https://pkg.go.dev/sigs.k8s.io/kueue/pkg/controller/jobframework), and its MultiKueue adapter. Kueue itself is not here.

`Job` is the part that an integration of ElasticJob in Kueue would be: which field says what. `Queue` is the part that
Kueue has already.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from tests.integration.operator.kube import Json, Namespace

QUEUE = "kueue.x-k8s.io/queue-name"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
PREBUILT, ORIGIN = "kueue.x-k8s.io/prebuilt-workload-name", "kueue.x-k8s.io/multikueue-origin"


@dataclasses.dataclass(frozen=True)
class PodSet:
    """How many pods, and what an admission adds to their template."""

    count: int
    node_selector: dict[str, str] = dataclasses.field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    annotations: dict[str, str] = dataclasses.field(default_factory=dict)


class Job:
    """GenericJob."""

    def __init__(self, body: Json) -> None:
        self.body = body
        self.spec: Json = body["spec"]
        self.status: Json = body.get("status") or {}

    @property
    def is_suspended(self) -> bool:
        return bool(self.spec["suspend"])

    def is_active(self) -> bool:
        """There may be pods: some are known, or the operator has not looked since the last change."""
        return bool(
            self.status.get("observedGeneration") != self.body["metadata"]["generation"] or self.status.get("replicas")
        )

    def pods_ready(self) -> bool:
        return self._is_true("Running")

    @property
    def finished(self) -> tuple[str, bool] | None:
        """(message, whether it succeeded); None: it has not ended."""
        for type_ in ("Succeeded", "Failed"):
            if self._is_true(type_):
                return str(self._condition(type_)["message"]), type_ == "Succeeded"
        return None

    @property
    def pod_sets(self) -> tuple[int, int]:
        """(wanted, least): with the second, the queue may admit fewer."""
        workers = self.spec["workers"]
        return workers["replicas"], workers.get("minReplicas", workers["replicas"])

    def suspend(self) -> None:
        self.spec["suspend"] = True

    def run_with(self, info: PodSet) -> None:
        """RunWithPodSetsInfo"""
        template = self.spec["workers"]["template"]
        self.spec["suspend"] = False
        self.spec["workers"]["replicas"] = info.count
        metadata = template.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), **info.labels}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **info.annotations}
        template["spec"]["nodeSelector"] = {**(template["spec"].get("nodeSelector") or {}), **info.node_selector}
        template["spec"]["tolerations"] = [*(template["spec"].get("tolerations") or []), *info.tolerations]

    def restore(self, original: Json) -> None:
        """RestorePodSetsInfo: `original` is what the spec of the job's workers was when it was queued."""
        self.spec["workers"] = copy.deepcopy(original)

    def _condition(self, type_: str) -> Json:
        return next((condition for condition in self.status.get("conditions") or [] if condition["type"] == type_), {})

    def _is_true(self, type_: str) -> bool:
        return self._condition(type_).get("status") == "True"


class Queue:
    """One job, `admit` and `preempt` it, and `reconcile` as often as it changes."""

    def __init__(self, ns: Namespace, name: str) -> None:
        self._ns = ns
        self._name = name
        self._original: Json = copy.deepcopy(ns.job(name)["spec"]["workers"])
        self._admission: PodSet | None = None
        self._evicted = False
        self._reserved = False
        self.finished: tuple[str, bool] | None = None

    def admit(self, info: PodSet) -> None:
        wanted, least = self.job.pod_sets
        assert least <= info.count <= wanted
        self._admission, self._evicted, self._reserved = info, False, True
        self.reconcile()

    def preempt(self) -> None:
        self._evicted = True
        self.reconcile()

    @property
    def job(self) -> Job:
        return Job(self._ns.job(self._name))

    def reconcile(self) -> None:
        """The order of Kueue's own reconciler: finished, evicted, suspended, running."""
        job = self.job
        if job.finished is not None:
            self.finished, self._reserved = job.finished, False
        elif self._evicted:
            self._stop(job)
            if not self.job.is_active():
                self._reserved, self._admission = False, None
        elif self._admission is not None and job.is_suspended:
            job.run_with(self._admission)
            self._write(job)
        elif self._admission is None:
            self._stop(job)

    def holds_quota(self) -> bool:
        return self._reserved

    def is_free(self) -> bool:
        """Looks again."""
        self.reconcile()
        return not self._reserved

    def hears_of_the_end(self) -> bool:
        """Looks again."""
        self.reconcile()
        return self.finished is not None

    def _stop(self, job: Job) -> None:
        """In one write, as Kueue does: suspended, and the template as it was."""
        if not job.is_suspended:
            job.suspend()
            job.restore(self._original)
            self._write(job)

    def _write(self, job: Job) -> None:
        """The spec alone: the operator may write status meanwhile."""
        self._ns.patch("elasticjobs", self._name, {"spec": merge_patch(self._ns.job(self._name)["spec"], job.spec)})


def queued(manifest: Json) -> Json:
    """What Kueue's webhook makes of a job with a queue's name: it begins suspended."""
    result = copy.deepcopy(manifest)
    if QUEUE in result["metadata"].get("labels", {}):
        result["spec"]["suspend"] = True
    return result


def sync(manager: Namespace, worker: Namespace, name: str) -> None:
    """MultiKueue's adapter for custom jobs: makes the job in the worker cluster, without managedBy, and brings back its
    status."""
    local = manager.job(name)
    assert local["spec"].get("managedBy") == MULTIKUEUE
    remote = worker.get("elasticjobs", name)
    if remote is None:
        body = {key: local[key] for key in ("apiVersion", "kind", "spec")}
        body["spec"] = {key: value for key, value in body["spec"].items() if key != "managedBy"}
        labels = {PREBUILT: f"workload-{name}", ORIGIN: "multikueue"}
        worker.create("elasticjobs", {**body, "metadata": {"name": name, "labels": labels}})
    elif remote.get("status", {}) != local.get("status", {}):
        patch = merge_patch({"status": local.get("status", {})}, {"status": remote.get("status", {})})
        manager.patch("elasticjobs", name, patch, "status")


def merge_patch(before: Json, after: Json) -> Json:
    """JSON merge patch (RFC 7396) from one to the other."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            if part := merge_patch(before[key], value):
                patch[key] = part
        elif key not in before or before[key] != value:
            patch[key] = value
    return patch
