"""PyTorchJob, kubeflow.org/v1, of the Kubeflow training operator.

Reference: pkg/apis/kubeflow.org/v1/pytorch_types.go and common_types.go of kubeflow/trainer, release 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.convert import metadata
from elasticjob.convert.draft import Draft, a_number, an_object, present
from elasticjob.convert.replicas import merged, role
from elasticjob.convert.runpolicy import check_metrics, run_policy, set_run_policy
from elasticjob.convert.sizes import (
    MAX,
    MIN,
    PROCS,
    REPLICAS,
    RESTARTS,
    Bounds,
    set_procs,
    set_restart_policy,
    set_restarts,
    set_sizes,
)
from elasticjob.convert.table import ConvertError, Field, carried, changed, computed, irrelevant, lost
from elasticjob.convert.template import OUR_INDEX_LABEL, OUR_JOB_LABEL, TEMPLATE, Origin, set_template
from elasticjob.convert.values import metrics, procs_per_worker, whole_number

API_VERSION, KIND = "kubeflow.org/v1", "PyTorchJob"

_OWN_ETCD = "each ElasticJob has an etcd of its own, so no worker pod hosts the rendezvous and none is special"
_EXTERNAL = "to use an etcd that you run, set spec.rendezvous.endpoint; it must serve the v3 API"

TABLE: tuple[Field, ...] = (
    *metadata.TABLE,
    carried("spec.nprocPerNode", PROCS, convert=procs_per_worker),
    computed("spec.elasticPolicy.minReplicas", MIN),
    computed("spec.elasticPolicy.maxReplicas", MAX),
    carried("spec.elasticPolicy.nProcPerNode", PROCS, convert=procs_per_worker),
    carried(
        "spec.elasticPolicy.maxRestarts",
        RESTARTS,
        "counts restarts of the whole group, over the life of the job",
        convert=whole_number,
    ),
    changed("spec.elasticPolicy.rdzvBackend", "", _OWN_ETCD, _EXTERNAL),
    changed("spec.elasticPolicy.rdzvHost", "", _OWN_ETCD, _EXTERNAL),
    irrelevant("spec.elasticPolicy.rdzvPort", _OWN_ETCD),
    irrelevant("spec.elasticPolicy.rdzvId", "the operator gives each run an ID of its own"),
    irrelevant("spec.elasticPolicy.rdzvConf", "its settings are for torch's rendezvous, which is not used"),
    irrelevant("spec.elasticPolicy.standalone", "the operator sets up the rendezvous for any number of worker pods"),
    carried(
        "spec.elasticPolicy.metrics",
        "spec.scaling.metrics",
        "the operator creates the HorizontalPodAutoscaler, which changes spec.workers.replicas: leave that out when "
        "you apply the manifest again",
        convert=metrics,
    ),
    *run_policy("spec.runPolicy"),
    computed("spec.pytorchReplicaSpecs.~Worker.replicas", REPLICAS, "Master and Worker add up"),
    computed("spec.pytorchReplicaSpecs.~Worker.restartPolicy", RESTARTS),
    computed("spec.pytorchReplicaSpecs.~Worker.template", TEMPLATE),
    computed("spec.pytorchReplicaSpecs.~Master.replicas", REPLICAS, "Master and Worker add up"),
    computed("spec.pytorchReplicaSpecs.~Master.restartPolicy", RESTARTS, "the Worker's, if there is one, counts"),
    computed("spec.pytorchReplicaSpecs.~Master.template", TEMPLATE, "put together with the Worker's"),
    lost("spec.pytorchReplicaSpecs.*", "a PyTorchJob has the replica types Master and Worker only"),
)

ORIGIN = Origin(
    kind=KIND,
    container="pytorch",
    labels={
        "training.kubeflow.org/job-name": OUR_JOB_LABEL,
        "training.kubeflow.org/replica-index": OUR_INDEX_LABEL,
        "training.kubeflow.org/replica-type": "",
        "training.kubeflow.org/job-role": "",
        "training.kubeflow.org/operator-name": "",
    },
)


_SPECS, _POLICY = ("spec", "pytorchReplicaSpecs"), ("spec", "elasticPolicy")


def convert(document: Mapping[str, Any], draft: Draft) -> None:
    """Raises ConvertError."""
    specs = an_object(document, "spec", "pytorchReplicaSpecs", required=True)
    roles = [each for each in (role(specs, "Worker"), role(specs, "Master")) if each]
    if not roles:
        raise ConvertError("spec.pytorchReplicaSpecs has neither Worker nor Master")
    draft.carry(document, TABLE)
    at = (*_SPECS, roles[0][0])
    launch = set_template(draft, _template(specs, roles, draft), (*at, "template"), ORIGIN)
    counts = [a_number(document, (*_SPECS, key, "replicas")) for key, _ in roles]
    low, high = (a_number(document, (*_POLICY, name)) for name in ("minReplicas", "maxReplicas"))
    total = sum(1 if each is None else each for each in counts)
    set_sizes(draft, total, (*at, "replicas"), Bounds(low, high), launch)
    set_procs(
        draft, launch, default=None, fields=present(document, ("spec", "nprocPerNode"), (*_POLICY, "nProcPerNode"))
    )
    set_restarts(draft, launch)
    set_run_policy(draft, document, ("spec", "runPolicy"))
    set_restart_policy(draft, roles[0][1].get("restartPolicy"), (*at, "restartPolicy"), launch)
    check_metrics(draft, (*_POLICY, "metrics"))


def _template(specs: Mapping[str, Any], roles: list[tuple[str, dict[str, Any]]], draft: Draft) -> dict[str, Any]:
    """The Worker's template, with what only the Master's has."""
    template, *others = (an_object(specs, key, "template", required=True) for key, _ in roles)
    for other in others:
        names = ("the Worker", "the Master")
        template = merged(template, other, (*_SPECS, roles[1][0], "template"), draft, names=names)
    return template
