"""TrainJob, trainer.kubeflow.org/v1alpha1, with the TrainingRuntime or ClusterTrainingRuntime that it refers to.

Reference: pkg/apis/trainer/v1alpha1/trainjob_types.go and trainingruntime_types.go of kubeflow/trainer, and
api/jobset/v1alpha2/jobset_types.go of kubernetes-sigs/jobset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from elasticjob.convert import jobset, metadata, sizes
from elasticjob.convert.command import Launch, Style
from elasticjob.convert.draft import Draft, a_list, a_number, an_object
from elasticjob.convert.jobset import BEFORE, CONTAINER, DEADLINE, ONLY_TRAINER
from elasticjob.convert.merging import Merge
from elasticjob.convert.paths import Path, get
from elasticjob.convert.runpolicy import MANAGED_BY, METRICS, NO_POD_GROUPS, set_managed_by, set_metrics
from elasticjob.convert.sizes import MAX, MIN, PROCS, REPLICAS, RESTARTS
from elasticjob.convert.table import ConvertError, Table, carried, computed, irrelevant, lost
from elasticjob.convert.template import TEMPLATE, set_template, training_container

API_VERSION, KIND = "trainer.kubeflow.org/v1alpha1", "TrainJob"
RUNTIME_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
RUNTIME = "runtime"
"""The first step of paths into the runtime."""

_PATCH = "spec.runtimePatches[].trainingRuntimeSpec.template"
_PATCHED_JOB = f"{_PATCH}.spec.replicatedJobs[]"

_OVERRIDES = {"image": "image", "command": "command", "args": "args", "resourcesPerNode": "resources"}
"""Fields of a TrainJob's trainer -> those of the training container, which they replace."""

TABLE: Table = (
    *metadata.TABLE,
    irrelevant("spec.runtimeRef", "the runtime is part of the ElasticJob now"),
    lost("spec.initializer.dataset", ONLY_TRAINER, BEFORE),
    lost("spec.initializer.model", ONLY_TRAINER, BEFORE),
    *(computed(f"spec.trainer.{name}", f"{TEMPLATE}.spec.containers[].{field}") for name, field in _OVERRIDES.items()),
    computed("spec.trainer.env", f"{TEMPLATE}.spec.containers[].env"),
    computed("spec.trainer.numNodes", REPLICAS),
    computed("spec.trainer.numProcPerNode", PROCS),
    computed("spec.labels", "metadata.labels"),
    computed("spec.annotations", "metadata.annotations"),
    irrelevant("spec.podTemplateOverrides[].targetJobs", "only the trainer's job becomes worker pods"),
    computed("spec.podTemplateOverrides[].metadata", TEMPLATE),
    computed("spec.podTemplateOverrides[].spec", TEMPLATE),
    *(
        irrelevant(f"spec.{patches}[].{name}", "says who wrote the entry, and when")
        for patches in ("podTemplateOverrides", "runtimePatches")
        for name in ("manager", "time")
    ),
    computed(f"{_PATCH}.metadata.labels", "metadata.labels"),
    computed(f"{_PATCH}.metadata.annotations", "metadata.annotations"),
    irrelevant(f"{_PATCHED_JOB}.name", "only the trainer's job becomes worker pods"),
    lost(f"{_PATCHED_JOB}.template.metadata", jobset.NO_JOB),
    computed(f"{_PATCHED_JOB}.template.spec.template.metadata", TEMPLATE),
    computed(f"{_PATCHED_JOB}.template.spec.template.spec", TEMPLATE),
    carried("spec.suspend", "spec.suspend", of=bool),
    carried("spec.activeDeadlineSeconds", DEADLINE),
    computed("spec.managedBy", MANAGED_BY),
)

RUNTIME_TABLE: Table = (
    irrelevant("apiVersion", "the runtime is part of the ElasticJob now"),
    irrelevant("kind", "the runtime is part of the ElasticJob now"),
    irrelevant("metadata", "it describes the runtime, not the job"),
    computed("spec.mlPolicy.numNodes", REPLICAS),
    computed("spec.mlPolicy.torch.numProcPerNode", PROCS),
    computed("spec.mlPolicy.torch.elasticPolicy.minNodes", MIN),
    computed("spec.mlPolicy.torch.elasticPolicy.maxNodes", MAX),
    carried("spec.mlPolicy.torch.elasticPolicy.maxRestarts", RESTARTS),
    computed("spec.mlPolicy.torch.elasticPolicy.metrics", METRICS),
    lost("spec.podGroupPolicy", NO_POD_GROUPS, "set spec.scheduling.gang: see docs/guides/queueing.md"),
    computed("spec.template.metadata.labels", "metadata.labels"),
    computed("spec.template.metadata.annotations", "metadata.annotations"),
    *jobset.rows("spec.template.spec"),
)

_POLICY = ("spec", "mlPolicy", "torch", "elasticPolicy")
_JOB_SET = ("spec", "template", "spec")


class _Patch(Merge):
    """What a patch of the TrainJob has counts."""

    names: ClassVar = dict.fromkeys(
        ("containers", "env", "imagePullSecrets", "initContainers", "schedulingGates", "volumeMounts", "volumes"),
        "name",
    )
    replaces = True

    def note_unused(self, path: Path) -> None:
        self.draft.irrelevant(path, "the TrainJob replaces it")

    def adds(self, source: Path) -> bool:
        if {"containers", "initContainers"}.isdisjoint(source[-2:]):
            return True
        self.draft.lost(source, "the runtime has no such container")
        return False


def convert(job: Mapping[str, Any], runtime: Mapping[str, Any], draft: Draft) -> None:
    """Raises ConvertError."""
    _check_policy(runtime)
    draft.carry(runtime, RUNTIME_TABLE, (RUNTIME,))
    draft.carry(job, TABLE)
    _set_labels(job, runtime, draft)
    name, job_at = jobset.trainer_job(runtime, _JOB_SET, draft, (RUNTIME,))
    at = (RUNTIME, *job_at, "template")
    template = _with_overrides(job, an_object(runtime, *job_at, "template", required=True), at, draft)
    for patch, source in _patches(job, name, draft):
        template = _Patch(draft).of(template, patch, at, source)
    launch = set_template(draft, template, at, jobset.ORIGIN)
    _set_numbers(job, runtime, launch, draft)
    sizes.set_restarts(draft, launch)
    jobset.set_ends(draft, runtime, _JOB_SET, job_at, (RUNTIME,))
    set_managed_by(draft, job, ("spec", "managedBy"))
    set_metrics(draft, runtime, (*_POLICY, "metrics"), (RUNTIME,))


def _check_policy(runtime: Mapping[str, Any]) -> None:
    policy = an_object(runtime, "spec", "mlPolicy")
    others = sorted(key for key, value in policy.items() if isinstance(value, dict) and key != "torch")
    if others:
        name = get(runtime, ("metadata", "name"))
        raise ConvertError(f"the runtime {name} trains with {others[0]}, and an ElasticJob with torch only")


def _set_labels(job: Mapping[str, Any], runtime: Mapping[str, Any], draft: Draft) -> None:
    """Those of the job, of its JobSet and of the runtime's, in order of precedence."""
    of_job_set = ("trainingRuntimeSpec", "template", "metadata")
    patches = range(len(a_list(job, "spec", "runtimePatches")))
    in_patches = [("spec", "runtimePatches", index, *of_job_set) for index in reversed(patches)]
    for path in (("metadata",), *in_patches, ("spec",)):
        metadata.add_labels(draft, job, path)
    metadata.add_labels(draft, runtime, ("spec", "template", "metadata"), (RUNTIME,))


def _with_overrides(job: Mapping[str, Any], template: dict[str, Any], at: Path, draft: Draft) -> dict[str, Any]:
    """The template, with what the TrainJob's trainer says about the training container."""
    trainer, source = an_object(job, "spec", "trainer"), ("spec", "trainer")
    index = training_container(template, CONTAINER, at=at)
    containers, at = [*template["spec"]["containers"]], (*at, "spec", "containers", index)
    container = dict(containers[index])
    for name, field in _OVERRIDES.items():
        if trainer.get(name) is None:
            continue
        if container.get(field) is not None:
            draft.irrelevant((*at, field), f"the TrainJob's {name} takes its place")
        container[field] = trainer[name]
        draft.origins[(*at, field)] = (*source, name)
    env: list[Any] = []
    added = a_list(trainer, "env", at=source)
    for number, variable in enumerate(a_list(container, "env", at=at)):
        if any(other.get("name") == variable.get("name") for other in added):
            draft.irrelevant((*at, "env", number), "the TrainJob sets this variable")
        else:
            draft.origins[(*at, "env", len(env))] = (*at, "env", number)
            env.append(variable)
    for number, variable in enumerate(added):
        draft.origins[(*at, "env", len(env))] = (*source, "env", number)
        env.append(variable)
    containers[index] = {**container, "env": env}
    return {**template, "spec": {**template["spec"], "containers": containers}}


def _patches(job: Mapping[str, Any], trainer: str, draft: Draft) -> Iterator[tuple[dict[str, Any], Path]]:
    """Patches of the trainer's pod template, in order, with their paths."""
    for index, override in enumerate(a_list(job, "spec", "podTemplateOverrides")):
        path: Path = ("spec", "podTemplateOverrides", index)
        if any(target.get("name") == trainer for target in a_list(override, "targetJobs")):
            yield {key: override[key] for key in ("metadata", "spec") if isinstance(override.get(key), dict)}, path
        else:
            draft.lost(path, "it is for a job other than the trainer's", BEFORE)
    for index, patch in enumerate(a_list(job, "spec", "runtimePatches")):
        jobs = ("trainingRuntimeSpec", *_JOB_SET[1:], "replicatedJobs")
        for number, target in enumerate(a_list(patch, *jobs)):
            path = ("spec", "runtimePatches", index, *jobs, number)
            if target.get("name") == trainer:
                of_pods = ("template", "spec", "template")
                yield an_object(target, *of_pods), (*path, *of_pods)
            else:
                draft.lost(path, "it is for a job other than the trainer's", BEFORE)


def _set_numbers(job: Mapping[str, Any], runtime: Mapping[str, Any], launch: Launch, draft: Draft) -> None:
    low, high = (a_number(runtime, *_POLICY, name) for name in ("minNodes", "maxNodes"))
    at: Path = (RUNTIME, "spec", "mlPolicy", "numNodes")
    of_job, of_runtime = a_number(job, "spec", "trainer", "numNodes"), a_number(runtime, *at[1:])
    if of_job is not None and of_runtime is not None:
        draft.irrelevant(at, "the TrainJob's numNodes takes precedence")
    if of_job is None:
        sizes.set_sizes(draft, of_runtime or high or low or 1, at, (low, high), launch)
    else:
        sizes.set_sizes(draft, of_job, ("spec", "trainer", "numNodes"), (low, high), launch)
    own: Path = ("spec", "trainer", "numProcPerNode")
    inherited: Path = (RUNTIME, "spec", "mlPolicy", "torch", "numProcPerNode")
    fields = {inherited: get(runtime, inherited[1:]), own: get(job, own)}
    if launch.style is not Style.SCRIPT and None not in fields.values():
        draft.irrelevant(inherited, "the TrainJob's numProcPerNode takes precedence")
        del fields[inherited]
    sizes.set_procs(draft, launch, default=None, fields=fields)
