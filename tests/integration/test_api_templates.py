"""Invalid pod templates: rejected at once where the schema sees it, else with the message of condition Accepted."""

from __future__ import annotations

import pytest
from elasticjob_operator.resources.pods import worker_pod
from elasticjob_operator.resources.template import InvalidTemplateError

from tests.integration.manifests import GONE, POD, TRAINER, WORKERS, Case, Cluster, api, changed, empty

__all__ = ["api", "empty"]

REJECTED_BY_SCHEMA = {
    "no template": Case({f"{WORKERS}.template": GONE}, ("spec.workers.template: Required value",)),
    "no containers": Case({f"{POD}.containers": []}, ("spec.workers.template.spec.containers", "at least 1 items")),
    "container without a name": Case(
        {f"{TRAINER}.name": GONE}, ("spec.workers.template.spec.containers[0].name: Required value",)
    ),
    "trainer container that does not exist": Case(
        {f"{WORKERS}.container": "trainr"},
        (
            'spec.workers.container: Invalid value: the template has no container trainr, only ["trainer", '
            '"sidecar"]: choose one of these',
        ),
    ),
    "restartPolicy of a Deployment": Case(
        {f"{POD}.restartPolicy": "Always"},
        ("spec.workers.template.spec.restartPolicy", "restartPolicy Always is not supported: remove it"),
    ),
    "reserved variables": Case(
        {
            f"{TRAINER}.env.1": {"name": "MASTER_ADDR", "value": "x"},
            f"{TRAINER}.env.2": {"name": "PET_NNODES", "value": "2"},
        },
        ('env of container trainer sets ["MASTER_ADDR", "PET_NNODES"], which ElasticJob sets itself: remove it',),
    ),
    "reserved variables in another container": Case(
        {f"{WORKERS}.container": "sidecar"}, ('env of container sidecar sets ["RANK"]',)
    ),
    "reserved labels": Case(
        {"spec.workers.template.metadata.labels": {"elasticjob.dev/run": "1"}},
        ('labels ["elasticjob.dev/run"] are reserved for ElasticJob: remove them from the template',),
    ),
    "template as text": Case(
        {f"{WORKERS}.template": "train:1"}, ("spec.workers.template in body must be of type object",)
    ),
    "template without a spec": Case({f"{WORKERS}.template": {}}, ("spec.workers.template.spec: Required value",)),
    "null containers": Case({f"{POD}.containers": None}, ("spec.workers.template.spec.containers: Required value",)),
    "containers as a map": Case({f"{POD}.containers": {"name": "x"}}, ("spec.workers.template.spec.containers",)),
    "too many containers": Case(
        {f"{POD}.containers": [{"name": f"c{index}", "image": "x"} for index in range(33)]},
        ("containers: Too many: 33",),
    ),
    "two containers with the same name": Case(
        {f"{POD}.containers.1": {"name": "trainer", "image": "x"}},
        ('container names ["trainer", "trainer"] are not unique: rename one',),
    ),
    "container with a long name": Case({f"{TRAINER}.name": "a" * 64}, ("containers[0].name: Too long",)),
    "variables as a map": Case(
        {f"{TRAINER}.env": {"LR": "1"}}, ('unknown field "spec.workers.template.spec.containers[0].env.LR"',)
    ),
    "variable without a name": Case(
        {f"{TRAINER}.env.1": {"value": "1"}}, ("containers[0].env[1].name: Required value",)
    ),
    "restartPolicy of a container": Case(
        {f"{TRAINER}.restartPolicy": "Always"},
        (
            "restartPolicy Always of container trainer is not supported: remove it; ElasticJob replaces failed worker "
            "pods",
        ),
    ),
    "deadline of the pods": Case(
        {f"{POD}.activeDeadlineSeconds": 60},
        ("spec.workers.template.spec.activeDeadlineSeconds: Forbidden", "use spec.lifecycle.activeDeadlineSeconds"),
    ),
    "hostname": Case({f"{POD}.hostname": "me"}, ("hostname is not supported in the template: remove it",)),
    "subdomain": Case({f"{POD}.subdomain": "me"}, ("subdomain is not supported in the template: remove it",)),
    "sidecar as the trainer": Case(
        {
            f"{WORKERS}.container": "side",
            f"{POD}.initContainers": [{"name": "side", "image": "x", "restartPolicy": "Always"}],
        },
        ("the template has no container side",),
    ),
    "label as a number": Case(
        {f"{WORKERS}.template.metadata.labels": {"a": 1}},
        ("template.metadata.labels.a in body must be of type string",),
    ),
    "long label": Case(
        {f"{WORKERS}.template.metadata.labels": {"a": "b" * 64}}, ("template.metadata.labels.a: Too long",)
    ),
}


@pytest.mark.parametrize("case", REJECTED_BY_SCHEMA.values(), ids=REJECTED_BY_SCHEMA.keys())
def test_an_invalid_template_is_rejected_with_field_value_and_remedy(empty: Cluster, case: Case) -> None:
    empty.judges(case)


VOLUME = {"name": "data", "emptyDir": {}}
REJECTED_BY_DRY_RUN = {
    "misspelt field": Case({f"{POD}.nodeSelectors": {"disk": "ssd"}}, ('unknown field "spec.nodeSelectors"',)),
    "misspelt field of a container": Case(
        {f"{TRAINER}.resource": {}}, ('unknown field "spec.containers[0].resource"',)
    ),
    "container name in capitals": Case(
        {f"{TRAINER}.name": "Trainer"}, ('spec.containers[0].name: Invalid value: "Trainer"', "lower case")
    ),
    "no image": Case({f"{TRAINER}.image": GONE}, ("spec.containers[0].image: Required value",)),
    "command as text": Case(
        {f"{TRAINER}.command": "torchrun train.py"},
        ("command of container trainer is 'torchrun train.py': write a list, such as [torchrun, train.py]",),
    ),
    "argument as a number": Case(
        {f"{TRAINER}.args": ["--epochs", 3]}, ("args of container trainer has 3, which is not a string: quote it",)
    ),
    "variable as a number": Case(
        {f"{TRAINER}.env.1": {"name": "SEED", "value": 1}},
        ("env SEED of container trainer is 1, which is not a string: quote it",),
    ),
    "duplicate variable": Case(
        {f"{TRAINER}.env.1": {"name": "LR", "value": "1"}},
        ("env of container trainer has LR more than once, and only the last counts: remove the others",),
    ),
    "invalid variable name": Case({f"{TRAINER}.env.1": {"name": "A=B"}}, ('name: Invalid value: "A=B"',)),
    "GPUs as a word": Case({f"{TRAINER}.resources": {"limits": {"nvidia.com/gpu": "two"}}}, ("quantities must match",)),
    "GPU request above its limit": Case(
        {f"{TRAINER}.resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": 2}}},
        ("must be equal to nvidia.com/gpu limit",),
    ),
    "init container with the trainer's name": Case(
        {f"{POD}.initContainers": [{"name": "trainer", "image": "x"}]},
        ('spec.initContainers[0].name: Duplicate value: "trainer"',),
    ),
    "reserved volume name": Case(
        {
            "spec.checkpoint": {"volume": {"emptyDir": {}}},
            f"{POD}.volumes": [{**VOLUME, "name": "elasticjob-checkpoint"}],
        },
        ("spec.volumes has 'elasticjob-checkpoint', the name of spec.checkpoint.volume: rename it",),
    ),
    "two volumes at the same path": Case(
        {
            "spec.checkpoint": {"volume": {"emptyDir": {}}},
            f"{POD}.volumes": [VOLUME],
            f"{TRAINER}.volumeMounts": [{"name": "data", "mountPath": "/checkpoints/"}],
        },
        (
            "already mounts volume 'data' at spec.checkpoint.directory (/checkpoints): remove that mount, or "
            "spec.checkpoint.volume",
        ),
    ),
    "checkpoint volume of an unknown kind": Case(
        {"spec.checkpoint": {"volume": {"floppy": {}}}}, ('unknown field "spec.volumes[0].floppy"',)
    ),
    "checkpoint volume with a value of the wrong type": Case(
        {"spec.checkpoint": {"volume": {"nfs": {"server": 5, "path": "/"}}}},
        ("cannot unmarshal number into Go struct field", "nfs.server of type string"),
    ),
    "checkpoint volume that lacks a field": Case(
        {"spec.checkpoint": {"volume": {"nfs": {"server": "nfs"}}}}, ("spec.volumes[0].nfs.path: Required value",)
    ),
    "volume that does not exist": Case(
        {f"{TRAINER}.volumeMounts": [{"name": "nope", "mountPath": "/d"}]}, ('volumeMounts[0].name: Not found: "nope"',)
    ),
    "two priority classes": Case(
        {"spec.scheduling.priorityClassName": "a", f"{POD}.priorityClassName": "b"},
        ("priorityClassName is 'b', but spec.scheduling.priorityClassName is 'a': remove either",),
    ),
    "priority class that does not exist": Case(
        {"spec.scheduling.priorityClassName": "high"}, ("no PriorityClass with name high was found",)
    ),
    "dnsPolicy None without a dnsConfig": Case({f"{POD}.dnsPolicy": "None"}, ("spec.dnsConfig: Required value",)),
    "probe with an invalid port": Case(
        {f"{TRAINER}.livenessProbe": {"httpGet": {"path": "/", "port": 99999}}}, ("must be between 1 and 65535",)
    ),
    "label key with a space": Case(
        {f"{WORKERS}.template.metadata.labels": {"a b": "c"}}, ('metadata.labels: Invalid value: "a b"',)
    ),
}


@pytest.mark.parametrize("case", REJECTED_BY_DRY_RUN.values(), ids=REJECTED_BY_DRY_RUN.keys())
def test_a_template_that_makes_no_valid_pod_is_rejected_before_a_pod_is_created(empty: Cluster, case: Case) -> None:
    """By the dry run with which the operator checks a template before it accepts the job."""
    job = empty.try_to_create(changed(case.changes))
    try:
        message = empty.try_to_create_pod(worker_pod(job, index=0, run=1, endpoint="etcd:2379"))
    except InvalidTemplateError as error:
        message = str(error)
    for words in case.words:
        assert words in message


def test_a_pod_in_the_host_network_resolves_the_clusters_services(empty: Cluster) -> None:
    pod = worker_pod(empty.try_to_create(changed({f"{POD}.hostNetwork": True})), index=0, run=1, endpoint="etcd:2379")
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert empty.try_to_create_pod(pod) == ""
