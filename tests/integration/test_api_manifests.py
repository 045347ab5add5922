"""Good and bad manifests on a real API server: a wrong one is refused with its field, its value and what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.manifests import GONE, POD, ROOT, TRAINER, WORKERS, Case, Cluster, api, changed, empty

__all__ = ["api", "empty"]

EXAMPLES = sorted(ROOT.glob("examples/**/elasticjob*.yaml"))

GOOD = {
    "the least": Case({f"{WORKERS}.replicas": GONE}),
    "elastic": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8}),
    "bounds at the size": Case({f"{WORKERS}.minReplicas": 4, f"{WORKERS}.maxReplicas": 4}),
    "processes as a number": Case({f"{WORKERS}.procsPerWorker": 8}),
    "processes for each GPU": Case({f"{WORKERS}.procsPerWorker": "gpu"}),
    "a container of choice": Case({f"{WORKERS}.container": "trainer"}),
    "restartPolicy Never": Case({f"{POD}.restartPolicy": "Never"}),
    "pod fields that nobody here knows": Case({f"{POD}.aFieldOfTheFuture": {"deep": [1]}}),
    "a volume that the template mounts": Case({f"{POD}.volumes": [{"name": "data", "emptyDir": {}}]}),
    "nulls as generators write them": Case(
        {"spec.workers.template.metadata.creationTimestamp": None, f"{TRAINER}.env": None, "spec.checkpoint": None}
    ),
    "an etcd of one's own": Case({"spec.rendezvous.endpoint": "etcd.example.com:2379"}),
    "an etcd at an IPv6 address": Case({"spec.rendezvous.endpoint": "[fd00::1]:2379"}),
    "a managed etcd with resources": Case(
        {"spec.rendezvous.etcd": {"image": "etcd:3.6", "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}}}
    ),
    "checkpoints in a claim": Case({"spec.checkpoint.volume.persistentVolumeClaim.claimName": "checkpoints"}),
    "checkpoints where the template mounts them": Case({"spec.checkpoint.directory": "/data/run"}),
    "c10d": Case({"spec.rendezvous.backend": "c10d"}),
    "etcd-v2": Case({"spec.rendezvous": {"backend": "etcd-v2", "endpoint": "etcd:2379"}}),
    "allowed sizes": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [2, 4, 8]}),
    "sizes by a step": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 9, f"{WORKERS}.replicaStep": 2}),
    "an autoscaler": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, "spec.scaling.metrics": [{"type": "Resource"}]}),
    "rules and waits": Case(
        {
            "spec.restartPolicy": {
                "maxRestarts": 100,
                "windowSeconds": 3600,
                "rules": [{"exitCodes": [42, 143], "action": "Fail"}, {"reasons": ["OutOfMemory"], "action": "Ignore"}],
                "backoff": {"initialSeconds": 0, "maxSeconds": 0},
            }
        }
    ),
    "no restarts": Case({"spec.restartPolicy.maxRestarts": 0}),
    "all pods cleaned": Case({"spec.lifecycle.cleanPods": "All"}),
    "suspended from the start": Case({"spec.lifecycle.suspend": True}),
    "all deadlines": Case(
        {
            "spec.lifecycle.startupDeadlineSeconds": 60,
            "spec.lifecycle.activeDeadlineSeconds": 60,
            "spec.lifecycle.ttlSecondsAfterFinished": 0,
            "spec.lifecycle.gracefulShutdownSeconds": 0,
        }
    ),
    "another manager": Case({"spec.managedBy": "kueue.x-k8s.io/multikueue"}),
    "the longest name": Case({"metadata.name": "a" * 47}),
}


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD.keys())
def test_good_manifest_is_taken(empty: Cluster, case: Case) -> None:
    empty.try_to_create(changed(case.changes))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_example_is_taken(empty: Cluster, example: Path) -> None:
    empty.kubectl("apply", "--dry-run=server", "--filename", str(example))


BAD = {
    "too few workers": Case({f"{WORKERS}.replicas": 0}, ("spec.workers.replicas: Invalid value: 0", "greater than or equal to 1")),
    "too many workers": Case({f"{WORKERS}.replicas": 10_001}, ("spec.workers.replicas", "less than or equal to 10000")),
    "workers as text": Case({f"{WORKERS}.replicas": "4"}, ("spec.workers.replicas", "must be of type integer")),
    "below the least": Case({f"{WORKERS}.minReplicas": 5}, ("replicas (4) is below minReplicas (5): raise replicas or lower minReplicas",)),
    "above the most": Case({f"{WORKERS}.maxReplicas": 3}, ("replicas (4) is above maxReplicas (3): lower replicas or raise maxReplicas",)),
    "bounds crossed": Case(
        {f"{WORKERS}.minReplicas": 5, f"{WORKERS}.maxReplicas": 3},
        ("spec.workers.minReplicas: Invalid value: minReplicas (5) is above maxReplicas (3): lower minReplicas or raise maxReplicas",),
    ),
    "processes unknown": Case(
        {f"{WORKERS}.procsPerWorker": "many"}, ("procsPerWorker is many: write auto, cpu, gpu or a number from 1 to 1024",)
    ),
    "processes quoted": Case({f"{WORKERS}.procsPerWorker": "2"}, ("procsPerWorker is 2", "without quotes")),
    "no processes": Case({f"{WORKERS}.procsPerWorker": 0}, ("procsPerWorker is 0", "from 1 to 1024")),
    "no template": Case({f"{WORKERS}.template": GONE}, ("spec.workers.template: Required value",)),
    "no containers": Case({f"{POD}.containers": []}, ("spec.workers.template.spec.containers", "at least 1 items")),
    "a container without a name": Case({f"{TRAINER}.name": GONE}, ("spec.workers.template.spec.containers[0].name: Required value",)),
    "a container that is not there": Case(
        {f"{WORKERS}.container": "trainr"},
        ('spec.workers.container: Invalid value: the template has no container trainr, it has ["trainer", "sidecar"]: name one of these',),
    ),
    "restartPolicy of a Deployment": Case(
        {f"{POD}.restartPolicy": "Always"},
        ("spec.workers.template.spec.restartPolicy", "restartPolicy Always does not work here: leave it out"),
    ),
    "reserved names in env": Case(
        {f"{TRAINER}.env.1": {"name": "MASTER_ADDR", "value": "x"}, f"{TRAINER}.env.2": {"name": "PET_NNODES", "value": "2"}},
        ('env of container trainer sets ["MASTER_ADDR", "PET_NNODES"], which ElasticJob sets itself: remove it',),
    ),
    "reserved names in the container of choice": Case({f"{WORKERS}.container": "sidecar"}, ('env of container sidecar sets ["RANK"]',)),
    "our own labels": Case(
        {"spec.workers.template.metadata.labels": {"elasticjob.dev/run": "1"}},
        ('labels ["elasticjob.dev/run"] belong to ElasticJob: remove them from the template',),
    ),
    "a name too long for its pods": Case(
        {"metadata.name": "a" * 48}, ("metadata.name has 48 characters: shorten it to 47, because names made from it must fit into 63",)
    ),
    "a name that is no Service's": Case({"metadata.name": "7b.chat"}, ("metadata.name 7b.chat cannot be part of a Service's name",)),
    "a rendezvous that is not there": Case({"spec.rendezvous.backend": "zeus"}, ('supported values: "etcd-v3", "etcd-v2", "c10d"',)),
    "c10d with an endpoint": Case(
        {"spec.rendezvous": {"backend": "c10d", "endpoint": "etcd:2379"}},
        ("spec.rendezvous.endpoint", "endpoint etcd:2379 is not used by backend c10d, whose workers meet at worker 0: remove it"),
    ),
    "c10d with an etcd": Case({"spec.rendezvous": {"backend": "c10d", "etcd": {}}}, ("but backend is c10d: remove it",)),
    "etcd-v2 without an endpoint": Case(
        {"spec.rendezvous.backend": "etcd-v2"}, ("backend etcd-v2 needs an endpoint: host:port of an etcd up to 3.5 with --enable-v2",)
    ),
    "an endpoint with a scheme": Case(
        {"spec.rendezvous.endpoint": "http://etcd:2379"}, ("endpoint http://etcd:2379 is not host:port: write it without a scheme",)
    ),
    "an endpoint without a port": Case({"spec.rendezvous.endpoint": "etcd"}, ("endpoint etcd is not host:port",)),
    "two etcds": Case(
        {"spec.rendezvous.endpoint": "etcd:2379", "spec.rendezvous.etcd": {}}, ("endpoint names one that you run: remove either",)
    ),
    "no quantity": Case(
        {"spec.rendezvous.etcd.resources.limits": {"cpu": "lots"}}, ("lots is not a quantity from 0 on: write one such as 500m, 2 or 1Gi",)
    ),
    "a relative directory": Case({"spec.checkpoint.directory": "out"}, ("directory out is not an absolute path below /",)),
    "checkpoints over everything": Case({"spec.checkpoint.directory": "/"}, ("directory / is not an absolute path below /",)),
    "no kind of volume": Case({"spec.checkpoint.volume": {}}, ("write exactly one kind of volume",)),
    "two kinds of volume": Case({"spec.checkpoint.volume": {"emptyDir": {}, "nfs": {}}}, ("write exactly one kind of volume",)),
    "a claim without its name": Case(
        {"spec.checkpoint.volume": {"persistentVolumeClaim": {}}}, ("spec.checkpoint.volume.persistentVolumeClaim.claimName: Required",)
    ),
    "restarts below none": Case({"spec.restartPolicy.maxRestarts": -1}, ("spec.restartPolicy.maxRestarts", "greater than or equal to 0")),
    "cleaning that is not there": Case({"spec.lifecycle.cleanPods": "Some"}, ('supported values: "Running", "All", "None"',)),
    "a typing error": Case({f"{WORKERS}.replica": 4}, ('unknown field "spec.workers.replica"',)),
    "a field that comes later": Case({"spec.inject": "auto"}, ('unknown field "spec.inject"',)),
    "no time at all": Case(
        {"spec.lifecycle.activeDeadlineSeconds": 0}, ("spec.lifecycle.activeDeadlineSeconds", "greater than or equal to 1")
    ),
    "a deadline that another one forestalls": Case(
        {"spec.lifecycle.startupDeadlineSeconds": 90, "spec.lifecycle.activeDeadlineSeconds": 60},
        (
            "spec.lifecycle.startupDeadlineSeconds: Invalid value",
            "startupDeadlineSeconds (90) is above activeDeadlineSeconds (60), which ends the job before: lower it or leave it out",
        ),
    ),
    "sizes said twice": Case(
        {f"{WORKERS}.allowedReplicas": [4], f"{WORKERS}.replicaStep": 2},
        ("allowedReplicas and replicaStep both say which sizes are allowed: remove either",),
    ),
    "a size out of bounds": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.allowedReplicas": [2, 8]},
        ("allowedReplicas [2, 8] are not all from minReplicas to maxReplicas (2 to 4): change either; both bounds default to replicas",),
    ),
    "below all sizes": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [8]},
        ("replicas (4) is below all of allowedReplicas [8]: raise replicas, or allow a smaller size",),
    ),
    "a step that leaves no least size": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.replicaStep": 4},
        ("minReplicas (2; default: replicas) is not a multiple of replicaStep (4): change either",),
    ),
    "metrics without room": Case(
        {"spec.scaling.metrics": [{"type": "Resource"}]},
        ("scaling.metrics need room to scale: set workers.minReplicas below workers.maxReplicas",),
    ),
    "a rule that matches nothing": Case(
        {"spec.restartPolicy.rules": [{"action": "Fail"}]},
        ("spec.restartPolicy.rules[0]", "a rule without exitCodes and reasons matches nothing: give at least one of either"),
    ),
    "a rule for what is no exit code": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [0], "action": "Fail"}]}, ("spec.restartPolicy.rules[0].exitCodes[0]", "or equal to 1")
    ),
    "a rule that does what is not there": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [1], "action": "Retry"}]}, ('supported values: "Restart", "Ignore", "Fail"',)
    ),
    "waits crossed": Case(
        {"spec.restartPolicy.backoff": {"initialSeconds": 9, "maxSeconds": 3}},
        ("initialSeconds (9) is above maxSeconds (3): lower initialSeconds or raise maxSeconds",),
    ),
    "more restarts than a window remembers": Case(
        {"spec.restartPolicy": {"maxRestarts": 101, "windowSeconds": 60}},
        ("maxRestarts (101) is above 100, the most within windowSeconds", "lower maxRestarts, or leave windowSeconds out"),
    ),
    "a manager without a domain": Case(
        {"spec.managedBy": "kueue"}, ("managedBy kueue is not a domain, a slash and a name: write one such as kueue.x-k8s.io/",)
    ),
    "no spec": Case({"spec": GONE}, ("spec: Required value",)),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_manifest_is_refused_with_field_value_and_remedy(empty: Cluster, case: Case) -> None:
    refusal = empty.refusal(changed(case.changes))
    for words in case.words:
        assert words in refusal
