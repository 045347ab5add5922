"""ElasticJob, elastic.iml.github.io/v1alpha1, of DLRover.

Reference: go/elasticjob/api/v1alpha1/elasticjob_types.go of intelligent-machine-learning/dlrover.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.convert import metadata, sizes
from elasticjob.convert.command import Style
from elasticjob.convert.draft import Draft, a_list, a_number, an_object, role
from elasticjob.convert.paths import get
from elasticjob.convert.runpolicy import WHOLE_GROUP
from elasticjob.convert.sizes import REPLICAS, RESTARTS
from elasticjob.convert.table import ConvertError, Table, carried, changed, computed, irrelevant, lost
from elasticjob.convert.template import (
    OUR_INDEX_LABEL,
    OUR_JOB_LABEL,
    TEMPLATE,
    Origin,
    set_template,
    training_container,
)

API_VERSION, KIND = "elastic.iml.github.io/v1alpha1", "ElasticJob"

_ROLES = "an ElasticJob has worker pods only, which train with collectives such as all-reduce"
_BRAIN = "ElasticJob does not choose resources by itself"
_SCALE = "set spec.scaling.metrics, or let a queue change spec.workers.replicas"

TABLE: Table = (
    *metadata.TABLE,
    irrelevant("spec.distributionStrategy", "ElasticJobs always train with collectives such as all-reduce"),
    lost("spec.resourceLimits", "ElasticJob does not limit the resources of a whole job", "use a ResourceQuota"),
    lost("spec.optimizeMode", _BRAIN, _SCALE),
    lost("spec.brainService", _BRAIN, _SCALE),
    irrelevant("spec.enableElasticScheduling", "ElasticJobs are elastic between minReplicas and maxReplicas"),
    lost(
        "spec.enableDynamicSharding",
        "ElasticJob does not hand out the data",
        "use ElasticDistributedSampler of elasticjob_runtime.data",
    ),
    changed("spec.envs", TEMPLATE, "variables of the training container, where the template does not set them"),
    carried("spec.suspend", "spec.suspend", of=bool),
    computed("spec.replicaSpecs.~worker.replicas", REPLICAS),
    computed("spec.replicaSpecs.~worker.template", TEMPLATE),
    computed("spec.replicaSpecs.~worker.restartPolicy", RESTARTS),
    changed("spec.replicaSpecs.~worker.restartCount", RESTARTS, WHOLE_GROUP),
    lost("spec.replicaSpecs.~worker.autoScale", _BRAIN, _SCALE),
    lost(
        "spec.replicaSpecs.~worker.restartTimeout",
        "agents look for hangs by themselves, by what worker processes do and how long their steps take",
        "see --hang-factor in docs/reference/elasticrun.md",
    ),
    lost(
        "spec.replicaSpecs.~worker.priority",
        "worker pods are alike, with one PriorityClass",
        "set spec.scheduling.priorityClassName",
    ),
    lost(
        "spec.replicaSpecs.~worker.BatchScheduler",
        "the operator does not create PodGroups",
        "set schedulerName in the template, or use a queue: see docs/guides/queueing.md",
    ),
    irrelevant("spec.replicaSpecs.~dlrover-master", "the operator and the agents do what the master did"),
    lost("spec.replicaSpecs.~ps", _ROLES, "train with DistributedDataParallel or FSDP"),
    lost("spec.replicaSpecs.~chief", _ROLES, "add it to spec.workers.replicas; rank 0 takes its part"),
    lost("spec.replicaSpecs.~evaluator", _ROLES, "run it as a Job of its own, which reads the checkpoints"),
    lost("spec.replicaSpecs.*", _ROLES),
)

_MASTER = "an ElasticJob has no master: remove it"
_ENVIRONMENT = "read RANK, WORLD_SIZE or GROUP_RANK in the script, where elasticrun sets them"
ORIGIN = Origin(
    container="main",
    variables={
        **dict.fromkeys(("DLROVER_MASTER_ADDR", "DLROVER_MASTER_SERVICE_TYPE", "DLROVER_BRAIN_SERVICE_ADDR"), _MASTER),
        **dict.fromkeys(("NODE_RANK", "NODE_NUM", "NODE_ID", "WORKER_NUM", "WORKER_RANK"), _ENVIRONMENT),
    },
    labels={
        "elasticjob.dlrover/name": OUR_JOB_LABEL,
        "elasticjob.dlrover/rank-index": OUR_INDEX_LABEL,
        "elasticjob.dlrover/replica-index": OUR_INDEX_LABEL,
        "elasticjob.dlrover/replica-type": "",
    },
)

_SPECS = ("spec", "replicaSpecs")


def convert(document: Mapping[str, Any], draft: Draft) -> None:
    """Raises ConvertError."""
    found = role(document, _SPECS, "worker")
    if found is None:
        raise ConvertError(
            "spec.replicaSpecs has no worker: a job with parameter servers only cannot become an ElasticJob"
        )
    at, worker = (*_SPECS, found[0]), found[1]
    draft.carry(document, TABLE)
    template = _with_variables(document, (*at, "template"), draft)
    launch = set_template(draft, template, (*at, "template"), ORIGIN)
    sizes.set_sizes(draft, a_number(document, *at, "replicas") or 1, (*at, "replicas"), (None, None), launch)
    sizes.set_procs(draft, launch, default=1 if launch.style is Style.LAUNCHER else None)
    sizes.set_restarts(draft, launch)
    sizes.set_backoff_limit(draft, worker.get("restartCount"), (*at, "restartCount"))
    sizes.set_restart_policy(draft, worker.get("restartPolicy"), (*at, "restartPolicy"), launch)
    _note_values(draft, document, worker, at)


def _note_values(draft: Draft, document: Mapping[str, Any], worker: Mapping[str, Any], at: tuple[str, ...]) -> None:
    """Values of which more is true than of their field."""
    if get(document, ("spec", "distributionStrategy")) == "ParameterServerStrategy":
        draft.lost(("spec", "distributionStrategy"), _ROLES, "train with DistributedDataParallel or FSDP")
    if get(document, ("spec", "optimizeMode")) in ("manual", "mannual"):
        draft.irrelevant(("spec", "optimizeMode"), "the number of worker pods changes only when you change it")
    if worker.get("autoScale") is False:
        draft.irrelevant((*at, "autoScale"), "an ElasticJob without metrics does not scale by itself")
    if worker.get("BatchScheduler") == "default":
        draft.irrelevant((*at, "BatchScheduler"), "the cluster's default scheduler is used")


def _with_variables(document: Mapping[str, Any], at: tuple[str, ...], draft: Draft) -> dict[str, Any]:
    """The template, with the job's variables in its training container."""
    template = an_object(document, *at, required=True)
    index = training_container(template, ORIGIN.container, at=at)
    containers = [*template["spec"]["containers"]]
    env = [*a_list(containers[index], "env")]
    known = {variable.get("name") for variable in env}
    for key, value in an_object(document, "spec", "envs").items():
        name = value.get("name", key) if isinstance(value, dict) else key
        if not isinstance(value, dict) or name in known:
            draft.lost(("spec", "envs", key), "the template sets it too, or it is not a variable")
        else:
            env.append({**value, "name": name})
    containers[index] = {**containers[index], "env": env}
    return {**template, "spec": {**template["spec"], "containers": containers}}
