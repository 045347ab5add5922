"""TrainJob, trainer.kubeflow.org/v1alpha1, with the TrainingRuntime or ClusterTrainingRuntime that it refers to.

Reference: pkg/apis/trainer/v1alpha1/trainjob_types.go and trainingruntime_types.go of kubeflow/trainer, and
api/jobset/v1alpha2/jobset_types.go of kubernetes-sigs/jobset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.convert import metadata
from elasticjob.convert.command import Launch, Style
from elasticjob.convert.draft import Draft, a_list, a_number, an_object, present
from elasticjob.convert.jobset import CONTAINER, Trainer, trainer_of
from elasticjob.convert.metadata import add_labels
from elasticjob.convert.paths import Path, get
from elasticjob.convert.runpolicy import check_metrics, set_backoff_limit
from elasticjob.convert.sizes import (
    MAX,
    MIN,
    PROCS,
    REPLICAS,
    RESTARTS,
    Bounds,
    set_procs,
    set_restarts,
    set_sizes,
)
from elasticjob.convert.table import ConvertError, Field, carried, changed, computed, irrelevant, lost
from elasticjob.convert.template import OUR_INDEX_LABEL, OUR_JOB_LABEL, TEMPLATE, Origin, set_template
from elasticjob.convert.values import boolean, managed_by, metrics, positive_seconds, procs_per_worker, whole_number

API_VERSION, KIND = "trainer.kubeflow.org/v1alpha1", "TrainJob"
RUNTIME_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
JOB, RUNTIME = "job", "runtime"
"""Where the two documents are in what `convert` takes."""

_ONLY_TRAINER = "an ElasticJob has no steps before the training"
_BEFORE = "run it before as a Job that fills a PersistentVolumeClaim, or as an init container of spec.workers.template"
_PATCH = "spec.runtimePatches[].trainingRuntimeSpec.template"
_PATCHED_JOB = f"{_PATCH}.spec.replicatedJobs[]"
_NO_JOB = "there is no Job between an ElasticJob and its pods"

TABLE: tuple[Field, ...] = (
    *metadata.TABLE,
    irrelevant("spec.runtimeRef", "the runtime is part of the ElasticJob now"),
    lost("spec.initializer.dataset", _ONLY_TRAINER, _BEFORE),
    lost("spec.initializer.model", _ONLY_TRAINER, _BEFORE),
    computed("spec.trainer.image", f"{TEMPLATE}.spec.containers[].image"),
    computed("spec.trainer.command", f"{TEMPLATE}.spec.containers[].command"),
    computed("spec.trainer.args", f"{TEMPLATE}.spec.containers[].args"),
    computed("spec.trainer.env", f"{TEMPLATE}.spec.containers[].env"),
    computed("spec.trainer.resourcesPerNode", f"{TEMPLATE}.spec.containers[].resources"),
    computed("spec.trainer.numNodes", REPLICAS),
    carried("spec.trainer.numProcPerNode", PROCS, convert=procs_per_worker),
    computed("spec.labels", "metadata.labels"),
    computed("spec.annotations", "metadata.annotations"),
    irrelevant("spec.podTemplateOverrides[].targetJobs", "only the trainer's job becomes worker pods"),
    irrelevant("spec.podTemplateOverrides[].manager", "says who wrote the entry"),
    irrelevant("spec.podTemplateOverrides[].time", "says when the entry was written"),
    computed("spec.podTemplateOverrides[].metadata", TEMPLATE),
    computed("spec.podTemplateOverrides[].spec", TEMPLATE),
    irrelevant("spec.runtimePatches[].manager", "says who wrote the entry"),
    irrelevant("spec.runtimePatches[].time", "says when the entry was written"),
    computed(f"{_PATCH}.metadata.labels", "metadata.labels"),
    computed(f"{_PATCH}.metadata.annotations", "metadata.annotations"),
    irrelevant(f"{_PATCHED_JOB}.name", "only the trainer's job becomes worker pods"),
    lost(f"{_PATCHED_JOB}.template.metadata", _NO_JOB),
    computed(f"{_PATCHED_JOB}.template.spec.template.metadata", TEMPLATE),
    computed(f"{_PATCHED_JOB}.template.spec.template.spec", TEMPLATE),
    carried("spec.suspend", "spec.lifecycle.suspend", convert=boolean),
    carried("spec.activeDeadlineSeconds", "spec.lifecycle.activeDeadlineSeconds", convert=positive_seconds),
    carried("spec.managedBy", "spec.managedBy", convert=managed_by),
)

_GROUP = "the operator does not create PodGroups; a job starts once minReplicas worker pods are ready"
_SET = "spec.template.spec"
_JOB = f"{_SET}.replicatedJobs[].template.spec"
_NUMBER = "spec.workers.replicas says how many worker pods there are"

RUNTIME_TABLE: tuple[Field, ...] = (
    irrelevant("apiVersion", "the runtime is part of the ElasticJob now"),
    irrelevant("kind", "the runtime is part of the ElasticJob now"),
    irrelevant("metadata", "it describes the runtime, not the job"),
    computed("spec.mlPolicy.numNodes", REPLICAS),
    carried("spec.mlPolicy.torch.numProcPerNode", PROCS, convert=procs_per_worker),
    computed("spec.mlPolicy.torch.elasticPolicy.minNodes", MIN),
    computed("spec.mlPolicy.torch.elasticPolicy.maxNodes", MAX),
    carried("spec.mlPolicy.torch.elasticPolicy.maxRestarts", RESTARTS, convert=whole_number),
    carried("spec.mlPolicy.torch.elasticPolicy.metrics", "spec.scaling.metrics", convert=metrics),
    lost("spec.podGroupPolicy", _GROUP, "use a queue such as Kueue: see docs/queueing.md"),
    computed("spec.template.metadata.labels", "metadata.labels"),
    computed("spec.template.metadata.annotations", "metadata.annotations"),
    irrelevant(f"{_SET}.network", "worker pods always have names: <pod>.<job>"),
    irrelevant(f"{_SET}.coordinator", "no worker pod is special"),
    irrelevant(f"{_SET}.managedBy", "there is no JobSet"),
    lost(f"{_SET}.successPolicy", "an ElasticJob succeeds when all its worker processes have"),
    changed(
        f"{_SET}.failurePolicy.maxRestarts",
        RESTARTS,
        "counts restarts of the whole group; lost and preempted worker pods do not count",
    ),
    irrelevant(f"{_SET}.failurePolicy.restartStrategy", "worker processes restart in place"),
    lost(f"{_SET}.failurePolicy.rules", "they look at reasons of Jobs", "set spec.restartPolicy.rules"),
    lost(f"{_SET}.startupPolicy", _ONLY_TRAINER),
    carried(f"{_SET}.suspend", "spec.lifecycle.suspend", convert=boolean),
    carried(f"{_SET}.ttlSecondsAfterFinished", "spec.lifecycle.ttlSecondsAfterFinished", convert=whole_number),
    lost(f"{_SET}.volumeClaimPolicies", "the operator creates no claims", "create the PersistentVolumeClaims yourself"),
    irrelevant(f"{_SET}.replicatedJobs[].name", "the trainer's job becomes the worker pods"),
    irrelevant(f"{_SET}.replicatedJobs[].groupName", "the trainer's job becomes the worker pods"),
    irrelevant(f"{_SET}.replicatedJobs[].replicas", _NUMBER),
    lost(f"{_SET}.replicatedJobs[].dependsOn", _ONLY_TRAINER, _BEFORE),
    irrelevant(f"{_SET}.replicatedJobs[].template.metadata", _NO_JOB),
    irrelevant(f"{_JOB}.parallelism", _NUMBER),
    irrelevant(f"{_JOB}.completions", _NUMBER),
    irrelevant(f"{_JOB}.completionMode", "worker pods always have an index"),
    changed(f"{_JOB}.backoffLimit", RESTARTS, "counts restarts of the whole group"),
    lost(f"{_JOB}.backoffLimitPerIndex", "an ElasticJob counts restarts of the whole group"),
    lost(f"{_JOB}.maxFailedIndexes", "an ElasticJob counts restarts of the whole group"),
    lost(f"{_JOB}.podFailurePolicy", "it is for Jobs", "set spec.restartPolicy.rules"),
    irrelevant(f"{_JOB}.podReplacementPolicy", "the operator replaces a worker pod as soon as it can"),
    irrelevant(f"{_JOB}.suspend", "the TrainJob's suspend counts"),
    irrelevant(f"{_JOB}.managedBy", _NO_JOB),
    lost(f"{_JOB}.successPolicy", "an ElasticJob succeeds when all its worker processes have"),
    irrelevant(f"{_JOB}.selector", "the operator labels worker pods itself"),
    irrelevant(f"{_JOB}.manualSelector", "the operator labels worker pods itself"),
    computed(
        f"{_JOB}.activeDeadlineSeconds", "spec.lifecycle.activeDeadlineSeconds", "the TrainJob's takes precedence"
    ),
    computed(f"{_JOB}.ttlSecondsAfterFinished", "spec.lifecycle.ttlSecondsAfterFinished"),
    computed(f"{_JOB}.template", TEMPLATE),
)

ORIGIN = Origin(
    kind=KIND,
    container=CONTAINER,
    labels={
        "jobset.sigs.k8s.io/jobset-name": OUR_JOB_LABEL,
        "batch.kubernetes.io/job-completion-index": OUR_INDEX_LABEL,
        "jobset.sigs.k8s.io/replicatedjob-name": "",
        "jobset.sigs.k8s.io/job-index": "",
        "batch.kubernetes.io/job-name": "",
    },
)
_POLICY = ("spec", "mlPolicy", "torch", "elasticPolicy")


def convert(document: Mapping[str, Any], draft: Draft) -> None:
    """`document`: {"job": the TrainJob, "runtime": its runtime}. Raises ConvertError."""
    job, runtime = document[JOB], document[RUNTIME]
    _check_policy(runtime)
    draft.carry(runtime, RUNTIME_TABLE, (RUNTIME,))
    draft.carry(job, TABLE, (JOB,))
    _set_labels(job, runtime, draft)
    trainer = trainer_of(runtime, draft, (RUNTIME,))
    trainer.apply(_overrides(job), (JOB, "spec", "trainer"), draft)
    for patch, path in _patches(job, trainer.name, draft):
        trainer.patch(patch, path, draft)
    start = len(draft.notes)
    launch = trainer.moved(set_template(draft, trainer.template, trainer.at, ORIGIN))
    draft.notes[start:] = [trainer.moved_note(note) for note in draft.notes[start:]]
    _set_numbers(job, runtime, launch, draft)
    set_restarts(draft, launch)
    _set_ends(runtime, trainer, draft)
    check_metrics(draft, (RUNTIME, *_POLICY, "metrics"))


def _check_policy(runtime: Mapping[str, Any]) -> None:
    policy = an_object(runtime, "spec", "mlPolicy")
    others = sorted(key for key, value in policy.items() if isinstance(value, dict) and key != "torch")
    if others:
        name = get(runtime, ("metadata", "name"))
        raise ConvertError(f"the runtime {name} trains with {others[0]}, and an ElasticJob with torch only")


def _set_labels(job: Mapping[str, Any], runtime: Mapping[str, Any], draft: Draft) -> None:
    """Those of the job, of its JobSet and of the runtime's, in order of precedence."""
    in_patch = ("trainingRuntimeSpec", "template", "metadata")
    patches = [
        ("spec", "runtimePatches", index, *in_patch) for index in range(len(a_list(job, "spec", "runtimePatches")))
    ]
    for field in ("labels", "annotations"):
        for path in (("metadata",), *reversed(patches), ("spec",)):
            add_labels(draft, field, an_object(job, *path, field), (JOB, *path, field))
        path = ("spec", "template", "metadata", field)
        add_labels(draft, field, an_object(runtime, *path), (RUNTIME, *path))


def _overrides(job: Mapping[str, Any]) -> dict[str, Any]:
    """What the TrainJob says about the training container, by the container's fields and where it says so."""
    trainer = an_object(job, "spec", "trainer")
    names = {"image": "image", "command": "command", "args": "args", "env": "env", "resourcesPerNode": "resources"}
    return {field: (name, trainer[name]) for name, field in names.items() if trainer.get(name) is not None}


def _patches(job: Mapping[str, Any], trainer: str, draft: Draft) -> list[tuple[dict[str, Any], Path]]:
    """Patches of the trainer's pod template, in order, with their paths."""
    found: list[tuple[dict[str, Any], Path]] = []
    for index, each in enumerate(a_list(job, "spec", "podTemplateOverrides")):
        path: Path = (JOB, "spec", "podTemplateOverrides", index)
        if any(target.get("name") == trainer for target in a_list(each, "targetJobs")):
            found.append(({key: each[key] for key in ("metadata", "spec") if isinstance(each.get(key), dict)}, path))
        else:
            draft.lost(path, "it is for a job other than the trainer's", _BEFORE)
    for index, each in enumerate(a_list(job, "spec", "runtimePatches")):
        jobs = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for number, target in enumerate(a_list(each, *jobs)):
            path = (JOB, "spec", "runtimePatches", index, *jobs, number)
            if target.get("name") == trainer:
                found.append(
                    (an_object(target, "template", "spec", "template"), (*path, "template", "spec", "template"))
                )
            else:
                draft.lost(path, "it is for a job other than the trainer's", _BEFORE)
    return found


def _set_numbers(job: Mapping[str, Any], runtime: Mapping[str, Any], launch: Launch, draft: Draft) -> None:
    low, high = (a_number(runtime, (*_POLICY, name)) for name in ("minNodes", "maxNodes"))
    of_job, of_runtime = (
        a_number(job, ("spec", "trainer", "numNodes")),
        a_number(runtime, ("spec", "mlPolicy", "numNodes")),
    )
    if of_job is not None:
        replicas, at = of_job, (JOB, "spec", "trainer", "numNodes")
        if of_runtime is not None:
            draft.irrelevant((RUNTIME, "spec", "mlPolicy", "numNodes"), "the TrainJob's numNodes takes precedence")
    else:
        replicas, at = of_runtime or high or low or 1, (RUNTIME, "spec", "mlPolicy", "numNodes")
    set_sizes(draft, replicas, at, Bounds(low, high), launch)
    own = [(JOB, *path) for path in present(job, ("spec", "trainer", "numProcPerNode"))]
    inherited = [(RUNTIME, *path) for path in present(runtime, ("spec", "mlPolicy", "torch", "numProcPerNode"))]
    if own and launch.style is not Style.SCRIPT:
        for path in inherited:
            draft.irrelevant(path, "the TrainJob's numProcPerNode takes precedence")
        inherited = []
    set_procs(draft, launch, default=None, fields=(*own, *inherited))


def _set_ends(runtime: Mapping[str, Any], trainer: Trainer, draft: Draft) -> None:
    """When the job fails and when it is deleted: of the JobSet, else of the trainer's Job."""
    limits = (
        ("spec", "template", "spec", "failurePolicy", "maxRestarts"),
        (*trainer.job_at, "backoffLimit"),
    )
    for path in limits:
        limit = get(runtime, path)
        if limit is not None:
            set_backoff_limit(draft, limit, (RUNTIME, *path))
    for name in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        value, there = a_number(runtime, (*trainer.job_at, name)), draft.get(f"spec.lifecycle.{name}")
        if value is not None and there is None:
            draft.set(f"spec.lifecycle.{name}", value)
        elif value is not None:
            draft.irrelevant((RUNTIME, *trainer.job_at, name), f"another value takes precedence: {there}")
