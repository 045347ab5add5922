"""PyTorchJob, kubeflow.org/v1, of the Kubeflow training operator.

Reference: pkg/apis/kubeflow.org/v1/pytorch_types.go and common_types.go of kubeflow/trainer, release 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from elasticjob.convert import metadata, sizes
from elasticjob.convert.draft import Draft, a_number, an_object, role
from elasticjob.convert.merging import Merge
from elasticjob.convert.paths import Path, get
from elasticjob.convert.runpolicy import METRICS, run_policy, set_metrics, set_run_policy
from elasticjob.convert.sizes import MAX, MIN, PROCS, REPLICAS, RESTARTS
from elasticjob.convert.table import ConvertError, Table, carried, changed, computed, irrelevant, lost
from elasticjob.convert.template import OUR_INDEX_LABEL, OUR_JOB_LABEL, TEMPLATE, Origin, set_template

API_VERSION, KIND = "kubeflow.org/v1", "PyTorchJob"

_OWN_ETCD = "each ElasticJob has an etcd of its own, so no worker pod hosts the rendezvous and none is special"
_EXTERNAL = "to use an etcd that you run, set spec.rendezvous.type to External, and endpoint; it must serve the v3 API"

TABLE: Table = (
    *metadata.TABLE,
    computed("spec.nprocPerNode", PROCS),
    computed("spec.elasticPolicy.minReplicas", MIN),
    computed("spec.elasticPolicy.maxReplicas", MAX),
    computed("spec.elasticPolicy.nProcPerNode", PROCS),
    carried("spec.elasticPolicy.maxRestarts", RESTARTS, "counts restarts of the whole group, over the life of the job"),
    changed("spec.elasticPolicy.rdzvBackend", "", _OWN_ETCD, _EXTERNAL),
    changed("spec.elasticPolicy.rdzvHost", "", _OWN_ETCD, _EXTERNAL),
    irrelevant("spec.elasticPolicy.rdzvPort", _OWN_ETCD),
    irrelevant("spec.elasticPolicy.rdzvId", "the operator gives each run an ID of its own"),
    irrelevant("spec.elasticPolicy.rdzvConf", "its settings are for torch's rendezvous, which is not used"),
    irrelevant("spec.elasticPolicy.standalone", "the operator sets up the rendezvous for any number of worker pods"),
    computed(
        "spec.elasticPolicy.metrics",
        METRICS,
        "the operator creates the HorizontalPodAutoscaler, which changes spec.workers.replicas: leave that out when "
        "you apply the manifest again",
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
_TOGETHER = frozenset({"metadata", "labels", "annotations", "spec", "nodeSelector"})


class _Master(Merge):
    """Adds what only the Master has of variables, volumes, containers and labels to the Worker's template."""

    names: ClassVar = {
        **dict.fromkeys(("volumes", "env", "initContainers", "containers", "imagePullSecrets"), "name"),
        "volumeMounts": "mountPath",
        "envFrom": "",
        "tolerations": "",
    }
    replaces = False

    def note_unused(self, path: Path) -> None:
        why = "it differs from that of the Worker, and all worker pods are alike"
        self.draft.lost(path, why, "if rank 0 needs something else, decide in the script")

    def adds(self, source: Path) -> bool:
        *_, parent, step = source
        if step in self.names or step in _TOGETHER or parent in (*self.names, "labels", "annotations"):
            self.draft.changed(source, "only the Master had it; all worker pods are alike, so now all have it")
            return True
        self.note_unused(source)
        return False


def convert(document: Mapping[str, Any], draft: Draft) -> None:
    """Raises ConvertError."""
    roles = [each for name in ("Worker", "Master") if (each := role(document, _SPECS, name))]
    if not roles:
        raise ConvertError("spec.pytorchReplicaSpecs has neither Worker nor Master")
    draft.carry(document, TABLE)
    at = (*_SPECS, roles[0][0])
    template = an_object(document, *at, "template", required=True)
    for key, _ in roles[1:]:
        place = (*_SPECS, key, "template")
        template = _Master(draft).of(template, an_object(document, *place, required=True), (*at, "template"), place)
    launch = set_template(draft, template, (*at, "template"), ORIGIN)
    counts = [a_number(document, *_SPECS, key, "replicas") for key, _ in roles]
    low, high = (a_number(document, *_POLICY, name) for name in ("minReplicas", "maxReplicas"))
    total = sum(1 if count is None else count for count in counts)
    sizes.set_sizes(draft, total, (*at, "replicas"), (low, high), launch)
    procs = (("spec", "nprocPerNode"), (*_POLICY, "nProcPerNode"))
    sizes.set_procs(draft, launch, default=None, fields={path: get(document, path) for path in procs})
    sizes.set_restarts(draft, launch)
    set_run_policy(draft, document, ("spec", "runPolicy"))
    sizes.set_restart_policy(draft, roles[0][1].get("restartPolicy"), (*at, "restartPolicy"), launch)
    set_metrics(draft, document, (*_POLICY, "metrics"))
