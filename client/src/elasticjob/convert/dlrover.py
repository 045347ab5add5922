"""ElasticJob, elastic.iml.github.io/v1alpha1, of DLRover.

Reference: go/elasticjob/api/v1alpha1/elasticjob_types.go of intelligent-machine-learning/dlrover.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from elasticjob.convert import metadata
from elasticjob.convert.command import Style
from elasticjob.convert.draft import Draft, a_list, a_number, an_object
from elasticjob.convert.paths import get
from elasticjob.convert.replicas import role
from elasticjob.convert.runpolicy import set_backoff_limit
from elasticjob.convert.sizes import REPLICAS, RESTARTS, Bounds, set_procs, set_restart_policy, set_restarts, set_sizes
from elasticjob.convert.table import ConvertError, Field, Outcome, carried, changed, computed, irrelevant, lost
from elasticjob.convert.template import OUR_INDEX_LABEL, OUR_JOB_LABEL, TEMPLATE, Origin, set_template
from elasticjob.convert.values import boolean

API_VERSION, KIND = "elastic.iml.github.io/v1alpha1", "ElasticJob"

_ROLES = "an ElasticJob has worker pods only, which train with collectives such as all-reduce"
_BRAIN = "ElasticJob does not choose resources by itself"
_SCALE = "set spec.scaling.metrics, or let a queue change spec.workers.replicas"

TABLE: tuple[Field, ...] = (
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
    carried("spec.suspend", "spec.lifecycle.suspend", convert=boolean),
    computed("spec.replicaSpecs.~worker.replicas", REPLICAS),
    computed("spec.replicaSpecs.~worker.template", TEMPLATE),
    computed("spec.replicaSpecs.~worker.restartPolicy", RESTARTS),
    changed(
        "spec.replicaSpecs.~worker.restartCount",
        RESTARTS,
        "counts restarts of the whole group; lost and preempted worker pods do not count",
    ),
    lost("spec.replicaSpecs.~worker.autoScale", _BRAIN, _SCALE),
    lost(
        "spec.replicaSpecs.~worker.restartTimeout",
        "worker pods that hang are not restarted unless you ask for it",
        "add --hang-factor 20 to elasticrun: see docs/elasticrun.md",
    ),
    lost(
        "spec.replicaSpecs.~worker.priority",
        "worker pods are alike, with one PriorityClass",
        "set spec.scheduling.priorityClassName",
    ),
    lost(
        "spec.replicaSpecs.~worker.BatchScheduler",
        "the operator does not create PodGroups",
        "set schedulerName in the template, or use a queue: see docs/queueing.md",
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
    kind=KIND,
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
    worker = role(an_object(document, *_SPECS, required=True), "worker")
    if worker is None:
        raise ConvertError(
            "spec.replicaSpecs has no worker: a job with parameter servers only cannot become an ElasticJob"
        )
    strategy = get(document, ("spec", "distributionStrategy"))
    if strategy == "ParameterServerStrategy":
        draft.lost(("spec", "distributionStrategy"), _ROLES, "train with DistributedDataParallel or FSDP")
    if get(document, ("spec", "optimizeMode")) in ("manual", "mannual"):
        draft.irrelevant(("spec", "optimizeMode"), "the number of worker pods changes only when you change it")
    draft.carry(document, TABLE)
    at = (*_SPECS, worker[0])
    template = _with_variables(document, an_object(document, *at, "template", required=True), draft)
    launch = set_template(draft, template, (*at, "template"), ORIGIN)
    replicas = a_number(document, (*at, "replicas"))
    set_sizes(draft, replicas or 1, (*at, "replicas"), Bounds(), launch)
    set_procs(draft, launch, default=1 if launch.style is Style.LAUNCHER else None)
    set_restarts(draft, launch)
    if worker[1].get("restartCount") is not None:
        set_backoff_limit(draft, worker[1]["restartCount"], (*at, "restartCount"))
    set_restart_policy(draft, worker[1].get("restartPolicy"), (*at, "restartPolicy"), launch)
    _switched_off(draft, worker[1], at)


def _switched_off(draft: Draft, worker: Mapping[str, Any], at: tuple[str, ...]) -> None:
    """Fields that say what an ElasticJob does anyway."""
    if worker.get("autoScale") is False:
        draft.irrelevant((*at, "autoScale"), "an ElasticJob without metrics does not scale by itself")
    if worker.get("BatchScheduler") == "default":
        draft.irrelevant((*at, "BatchScheduler"), "the cluster's default scheduler is used")


def _with_variables(document: Mapping[str, Any], template: Mapping[str, Any], draft: Draft) -> dict[str, Any]:
    """The template, with the job's variables in its training container."""
    result = copy.deepcopy(dict(template))
    containers = get(result, ("spec", "containers"))
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], dict):
        return result
    container = next(
        (each for each in containers if isinstance(each, dict) and each.get("name") == ORIGIN.container), containers[0]
    )
    env = [*a_list(container, "env")]
    known = {each.get("name") for each in env if isinstance(each, dict)}
    for key, value in an_object(document, "spec", "envs").items():
        name = value.get("name", key) if isinstance(value, dict) else key
        if not isinstance(value, dict) or name in known:
            draft.note(("spec", "envs", key), Outcome.LOST, "the template sets it too, or it is not a variable")
        else:
            env.append({**value, "name": name})
    if env:
        container["env"] = env
    return result
