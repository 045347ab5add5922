"""ElasticJob, elastic.pytorch.org/v1alpha1, of the TorchElastic controller for Kubernetes.

Reference: kubernetes/api/v1alpha1/elasticjob_types.go of pytorch/elastic. No types of a v1beta1 were ever published;
manifests of that version are read by the same table, so a field that it added is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.convert import metadata, sizes
from elasticjob.convert.draft import Draft, a_number, an_object, role
from elasticjob.convert.runpolicy import run_policy, set_run_policy
from elasticjob.convert.sizes import MAX, MIN, REPLICAS, RESTARTS
from elasticjob.convert.table import ConvertError, Table, changed, computed, irrelevant, lost
from elasticjob.convert.template import TEMPLATE, Origin, set_template

API_VERSIONS = ("elastic.pytorch.org/v1alpha1", "elastic.pytorch.org/v1beta1")
KINDS = [(version, "ElasticJob") for version in API_VERSIONS]

TABLE: Table = (
    *metadata.TABLE,
    changed(
        "spec.rdzvEndpoint",
        "",
        "each ElasticJob has an etcd of its own; this one served the v2 API, which etcd 3.6 no longer has",
        "delete that etcd when no other job uses it; to share an etcd with the v3 API, set "
        "spec.rendezvous.type to External, and endpoint",
    ),
    computed("spec.minReplicas", MIN),
    computed("spec.maxReplicas", MAX),
    *run_policy("spec"),
    *run_policy("spec.runPolicy"),
    computed("spec.replicaSpecs.~Worker.replicas", REPLICAS),
    computed("spec.replicaSpecs.~Worker.restartPolicy", RESTARTS),
    computed("spec.replicaSpecs.~Worker.template", TEMPLATE),
    irrelevant("spec.replicaSpecs.~Etcd", "the operator runs an etcd for each job"),
    lost("spec.replicaSpecs.*", "only the Worker trains in an ElasticJob", "add its replicas to spec.workers.replicas"),
)

ORIGIN = Origin(implied_launcher=True, labels={"job-name": "", "replica-index": "", "replica-type": ""})

_WORKER = ("spec", "replicaSpecs")


def convert(document: Mapping[str, Any], draft: Draft) -> None:
    """Raises ConvertError."""
    worker = role(document, _WORKER, "Worker")
    if worker is None:
        raise ConvertError("spec.replicaSpecs has no Worker")
    draft.carry(document, TABLE)
    at = (*_WORKER, worker[0])
    template = an_object(document, *at, "template", required=True)
    launch = set_template(draft, template, (*at, "template"), ORIGIN)
    replicas = a_number(document, *at, "replicas")
    low, high = (a_number(document, "spec", name) for name in ("minReplicas", "maxReplicas"))
    sizes.set_sizes(draft, 1 if replicas is None else replicas, (*at, "replicas"), (low, high), launch)
    sizes.set_procs(draft, launch, default=1)
    sizes.set_restarts(draft, launch)
    for policy in (("spec",), ("spec", "runPolicy")):
        set_run_policy(draft, document, policy)
    sizes.set_restart_policy(draft, worker[1].get("restartPolicy"), (*at, "restartPolicy"), launch)
