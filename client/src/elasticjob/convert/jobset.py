"""JobSets as Kubeflow's training runtimes have them: the Job that trains becomes the worker pods.

Reference: api/jobset/v1alpha2/jobset_types.go of kubernetes-sigs/jobset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.convert.draft import Draft, a_list, a_number
from elasticjob.convert.paths import Path, get
from elasticjob.convert.runpolicy import WHOLE_GROUP
from elasticjob.convert.sizes import RESTARTS, set_backoff_limit
from elasticjob.convert.table import ConvertError, Field, carried, changed, computed, irrelevant, lost
from elasticjob.convert.template import OUR_INDEX_LABEL, OUR_JOB_LABEL, TEMPLATE, Origin

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINER_JOB = CONTAINER = "node"
DEADLINE, TTL = "spec.lifecycle.activeDeadlineSeconds", "spec.lifecycle.ttlSecondsAfterFinished"
ONLY_TRAINER = "an ElasticJob has no steps before the training"
BEFORE = "run it before as a Job that fills a PersistentVolumeClaim, or as an init container of spec.workers.template"
NO_JOB = "there is no Job between an ElasticJob and its pods"
_NUMBER = "spec.workers.replicas says how many worker pods there are"


def rows(at: str) -> tuple[Field, ...]:
    """Those of a JobSet's spec at this path."""
    job = f"{at}.replicatedJobs[].template.spec"
    return (
        irrelevant(f"{at}.network", "worker pods always have names: <pod>.<job>"),
        irrelevant(f"{at}.coordinator", "no worker pod is special"),
        irrelevant(f"{at}.managedBy", "there is no JobSet"),
        lost(f"{at}.successPolicy", "an ElasticJob succeeds when all its worker processes have"),
        changed(f"{at}.failurePolicy.maxRestarts", RESTARTS, WHOLE_GROUP),
        irrelevant(f"{at}.failurePolicy.restartStrategy", "worker processes restart in place"),
        lost(f"{at}.failurePolicy.rules", "they look at reasons of Jobs", "set spec.failurePolicy.rules"),
        lost(f"{at}.startupPolicy", ONLY_TRAINER),
        carried(f"{at}.suspend", "spec.suspend", of=bool),
        carried(f"{at}.ttlSecondsAfterFinished", TTL),
        lost(
            f"{at}.volumeClaimPolicies", "the operator creates no claims", "create the PersistentVolumeClaims yourself"
        ),
        irrelevant(f"{at}.replicatedJobs[].name", "the trainer's job becomes the worker pods"),
        irrelevant(f"{at}.replicatedJobs[].groupName", "the trainer's job becomes the worker pods"),
        irrelevant(f"{at}.replicatedJobs[].replicas", _NUMBER),
        lost(f"{at}.replicatedJobs[].dependsOn", ONLY_TRAINER, BEFORE),
        irrelevant(f"{at}.replicatedJobs[].template.metadata", NO_JOB),
        irrelevant(f"{job}.parallelism", _NUMBER),
        irrelevant(f"{job}.completions", _NUMBER),
        changed(f"{job}.backoffLimit", RESTARTS, "counts restarts of the whole group"),
        lost(f"{job}.backoffLimitPerIndex", "an ElasticJob counts restarts of the whole group"),
        lost(f"{job}.maxFailedIndexes", "an ElasticJob counts restarts of the whole group"),
        lost(f"{job}.podFailurePolicy", "it is for Jobs", "set spec.failurePolicy.rules"),
        lost(f"{job}.successPolicy", "an ElasticJob succeeds when all its worker processes have"),
        *(
            irrelevant(f"{job}.{name}", NO_JOB)
            for name in ("completionMode", "podReplacementPolicy", "suspend", "managedBy", "selector", "manualSelector")
        ),
        computed(f"{job}.activeDeadlineSeconds", DEADLINE, "the TrainJob's takes precedence"),
        computed(f"{job}.ttlSecondsAfterFinished", TTL),
        computed(f"{job}.template", TEMPLATE),
    )


ORIGIN = Origin(
    container=CONTAINER,
    labels={
        "jobset.sigs.k8s.io/jobset-name": OUR_JOB_LABEL,
        "batch.kubernetes.io/job-completion-index": OUR_INDEX_LABEL,
        "jobset.sigs.k8s.io/replicatedjob-name": "",
        "jobset.sigs.k8s.io/job-index": "",
        "batch.kubernetes.io/job-name": "",
    },
)


def trainer_job(runtime: Mapping[str, Any], path: Path, draft: Draft, at: Path) -> tuple[str, Path]:
    """The name of the Job that trains, and where its spec is; the others are noted. `path`: of the JobSet's spec; `at`:
    where the runtime is. Raises ConvertError."""
    jobs, path = a_list(runtime, *path, "replicatedJobs"), (*path, "replicatedJobs")
    labelled = (i for i, job in enumerate(jobs) if get(job, ("template", "metadata", "labels", ANCESTOR)) == "trainer")
    named = (i for i, job in enumerate(jobs) if job.get("name") == TRAINER_JOB)
    index = next(labelled, next(named, None))
    if index is None:
        raise ConvertError(f"the runtime {get(runtime, ('metadata', 'name'))} has no job that trains")
    for number, replicated in enumerate(jobs):
        if number != index:
            why = f"the job {replicated.get('name')} is not the trainer, and {ONLY_TRAINER}"
            draft.lost((*at, *path, number), why, BEFORE.removesuffix(" of spec.workers.template"))
    if (a_number(jobs[index], "replicas") or 1) > 1:
        why = "several Jobs of worker pods become one group"
        draft.lost((*at, *path, index, "replicas"), why, "set spec.workers.replicas to the number of all worker pods")
    return str(jobs[index].get("name")), (*path, index, "template", "spec")


def set_ends(draft: Draft, runtime: Mapping[str, Any], path: Path, job: Path, at: Path) -> None:
    """When the job fails and when it is deleted: of the JobSet's spec at `path`, else of the Job's at `job`."""
    for limit in ((*path, "failurePolicy", "maxRestarts"), (*job, "backoffLimit")):
        set_backoff_limit(draft, get(runtime, limit), (*at, *limit))
    for to in (DEADLINE, TTL):
        here = (*job, to.rpartition(".")[2])
        value, there = a_number(runtime, *here), draft.get(to)
        if value is not None and there is None:
            draft.set(to, value)
        elif value is not None:
            draft.irrelevant((*at, *here), f"another value takes precedence: {there}")
