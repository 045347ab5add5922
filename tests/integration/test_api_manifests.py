"""Good and bad manifests on a real API server: a wrong one is refused with its field, its value and what to do about
it."""

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
    "allowed sizes": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [2, 4, 8]}
    ),
    "sizes by a step": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 9, f"{WORKERS}.replicaStep": 2}),
    "an autoscaler": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, "spec.scaling.metrics": [{"type": "Resource"}]}
    ),
    "metrics taken away for a while": Case({"spec.scaling": {"metrics": [], "behavior": {"scaleDown": {}}}}),
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
    "another manager of its life": Case({"spec.lifecycle.managedBy": "kueue.x-k8s.io/multikueue"}),
    "one manager said twice": Case({"spec.managedBy": "a.b/c", "spec.lifecycle.managedBy": "a.b/c"}),
    "the longest name": Case({"metadata.name": "a" * 47}),
}


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD.keys())
def test_good_manifest_is_taken(empty: Cluster, case: Case) -> None:
    empty.try_to_create(changed(case.changes))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_example_is_taken(empty: Cluster, example: Path) -> None:
    empty.kubectl("apply", "--dry-run=server", "--filename", str(example))


BAD = {
    "too few workers": Case(
        {f"{WORKERS}.replicas": 0}, ("spec.workers.replicas: Invalid value: 0", "greater than or equal to 1")
    ),
    "too many workers": Case({f"{WORKERS}.replicas": 10_001}, ("spec.workers.replicas", "less than or equal to 10000")),
    "workers as text": Case({f"{WORKERS}.replicas": "4"}, ("spec.workers.replicas", "must be of type integer")),
    "below the least": Case(
        {f"{WORKERS}.minReplicas": 5}, ("replicas (4) is below minReplicas (5): raise replicas or lower minReplicas",)
    ),
    "above the most": Case(
        {f"{WORKERS}.maxReplicas": 3}, ("replicas (4) is above maxReplicas (3): lower replicas or raise maxReplicas",)
    ),
    "bounds crossed": Case(
        {f"{WORKERS}.minReplicas": 5, f"{WORKERS}.maxReplicas": 3},
        (
            "spec.workers.minReplicas: Invalid value: minReplicas (5) is above maxReplicas (3): lower minReplicas or "
            "raise maxReplicas",
        ),
    ),
    "processes unknown": Case(
        {f"{WORKERS}.procsPerWorker": "many"},
        ("procsPerWorker is many: write auto, cpu, gpu or a number from 1 to 1024",),
    ),
    "processes quoted": Case({f"{WORKERS}.procsPerWorker": "2"}, ("procsPerWorker is 2", "without quotes")),
    "no processes": Case({f"{WORKERS}.procsPerWorker": 0}, ("procsPerWorker is 0", "from 1 to 1024")),
    "a name too long for its pods": Case(
        {"metadata.name": "a" * 48},
        ("metadata.name has 48 characters: shorten it to 47, because names made from it must fit into 63",),
    ),
    "a name that is no Service's": Case(
        {"metadata.name": "7b.chat"}, ("metadata.name 7b.chat cannot be part of a Service's name",)
    ),
    "a rendezvous that is not there": Case(
        {"spec.rendezvous.backend": "zeus"}, ('supported values: "etcd-v3", "etcd-v2", "c10d"',)
    ),
    "c10d with an endpoint": Case(
        {"spec.rendezvous": {"backend": "c10d", "endpoint": "etcd:2379"}},
        (
            "spec.rendezvous.endpoint",
            "endpoint etcd:2379 is not used by backend c10d, whose workers meet at worker 0: remove it",
        ),
    ),
    "c10d with an etcd": Case(
        {"spec.rendezvous": {"backend": "c10d", "etcd": {}}}, ("but backend is c10d: remove it",)
    ),
    "etcd-v2 without an endpoint": Case(
        {"spec.rendezvous.backend": "etcd-v2"},
        ("backend etcd-v2 needs an endpoint: host:port of an etcd up to 3.5 with --enable-v2",),
    ),
    "an endpoint with a scheme": Case(
        {"spec.rendezvous.endpoint": "http://etcd:2379"},
        ("endpoint http://etcd:2379 is not host:port: write it without a scheme",),
    ),
    "an endpoint without a port": Case({"spec.rendezvous.endpoint": "etcd"}, ("endpoint etcd is not host:port",)),
    "two etcds": Case(
        {"spec.rendezvous.endpoint": "etcd:2379", "spec.rendezvous.etcd": {}},
        ("endpoint names one that you run: remove either",),
    ),
    "no quantity": Case(
        {"spec.rendezvous.etcd.resources.limits": {"cpu": "lots"}},
        ("lots is not a quantity from 0 on: write one such as 500m, 2 or 1Gi",),
    ),
    "a relative directory": Case(
        {"spec.checkpoint.directory": "out"}, ("directory out is not an absolute path below /",)
    ),
    "checkpoints over everything": Case(
        {"spec.checkpoint.directory": "/"}, ("directory / is not an absolute path below /",)
    ),
    "no kind of volume": Case({"spec.checkpoint.volume": {}}, ("write exactly one kind of volume",)),
    "two kinds of volume": Case(
        {"spec.checkpoint.volume": {"emptyDir": {}, "nfs": {}}}, ("write exactly one kind of volume",)
    ),
    "a claim without its name": Case(
        {"spec.checkpoint.volume": {"persistentVolumeClaim": {}}},
        ("spec.checkpoint.volume.persistentVolumeClaim.claimName: Required",),
    ),
    "restarts below none": Case(
        {"spec.restartPolicy.maxRestarts": -1}, ("spec.restartPolicy.maxRestarts", "greater than or equal to 0")
    ),
    "cleaning that is not there": Case(
        {"spec.lifecycle.cleanPods": "Some"}, ('supported values: "Running", "All", "None"',)
    ),
    "a typing error": Case({f"{WORKERS}.replica": 4}, ('unknown field "spec.workers.replica"',)),
    "a field that comes later": Case({"spec.inject": "auto"}, ('unknown field "spec.inject"',)),
    "no time at all": Case(
        {"spec.lifecycle.activeDeadlineSeconds": 0},
        ("spec.lifecycle.activeDeadlineSeconds", "greater than or equal to 1"),
    ),
    "a deadline that another one forestalls": Case(
        {"spec.lifecycle.startupDeadlineSeconds": 90, "spec.lifecycle.activeDeadlineSeconds": 60},
        (
            "spec.lifecycle.startupDeadlineSeconds: Invalid value",
            "startupDeadlineSeconds (90) is above activeDeadlineSeconds (60), which ends the job before: lower it or "
            "leave it out",
        ),
    ),
    "sizes said twice": Case(
        {f"{WORKERS}.allowedReplicas": [4], f"{WORKERS}.replicaStep": 2},
        ("allowedReplicas and replicaStep both say which sizes are allowed: remove either",),
    ),
    "a size out of bounds": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.allowedReplicas": [2, 8]},
        (
            "allowedReplicas [2, 8] are not all from minReplicas to maxReplicas (2 to 4): change either; both bounds "
            "default to replicas",
        ),
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
        (
            "spec.restartPolicy.rules[0]",
            "a rule without exitCodes and reasons matches nothing: give at least one of either",
        ),
    ),
    "a rule for what is no exit code": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [0], "action": "Fail"}]},
        ("spec.restartPolicy.rules[0].exitCodes[0]", "or equal to 1"),
    ),
    "a rule that does what is not there": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [1], "action": "Retry"}]},
        ('supported values: "Restart", "Ignore", "Fail"',),
    ),
    "waits crossed": Case(
        {"spec.restartPolicy.backoff": {"initialSeconds": 9, "maxSeconds": 3}},
        ("initialSeconds (9) is above maxSeconds (3): lower initialSeconds or raise maxSeconds",),
    ),
    "more restarts than a window remembers": Case(
        {"spec.restartPolicy": {"maxRestarts": 101, "windowSeconds": 60}},
        (
            "maxRestarts (101) is above 100, the most within windowSeconds",
            "lower maxRestarts, or leave windowSeconds out",
        ),
    ),
    "a manager without a domain": Case(
        {"spec.managedBy": "kueue"},
        ("managedBy kueue is not a domain, a slash and a name: write one such as kueue.x-k8s.io/",),
    ),
    "two managers": Case(
        {"spec.managedBy": "a.b/c", "spec.lifecycle.managedBy": "a.b/d"},
        (
            "spec.managedBy",
            "managedBy is a.b/c and lifecycle.managedBy is a.b/d: a job has one manager, so leave one of them out",
        ),
    ),
    "half a worker": Case({f"{WORKERS}.replicas": 2.5}, ("spec.workers.replicas", "must be of type int32")),
    "more workers than there are numbers": Case(
        {f"{WORKERS}.replicas": 2**40}, ("spec.workers.replicas: Invalid value: 1099511627776",)
    ),
    "least workers none": Case(
        {f"{WORKERS}.minReplicas": 0}, ("spec.workers.minReplicas: Invalid value: 0", "or equal to 1")
    ),
    "no workers": Case({"spec.workers": None}, ("spec.workers: Required value",)),
    "workers as a list": Case({"spec.workers": []}, ("spec.workers in body must be of type object",)),
    "processes in parts": Case(
        {f"{WORKERS}.procsPerWorker": 1.5}, ("spec.workers.procsPerWorker in body must be of type integer",)
    ),
    "too many processes": Case({f"{WORKERS}.procsPerWorker": 1025}, ("procsPerWorker is 1025", "from 1 to 1024")),
    "a size twice": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [2, 2, 4]},
        ("spec.workers.allowedReplicas[1]: Duplicate value: 2",),
    ),
    "no size allowed": Case(
        {f"{WORKERS}.allowedReplicas": []}, ("spec.workers.allowedReplicas", "should have at least 1 items")
    ),
    "a step of nothing": Case(
        {f"{WORKERS}.replicaStep": 0}, ("spec.workers.replicaStep: Invalid value: 0", "or equal to 1")
    ),
    "a step above the most": Case(
        {f"{WORKERS}.replicaStep": 8}, ("minReplicas (4; default: replicas) is not a multiple of replicaStep (8)",)
    ),
    "metrics between equal bounds": Case(
        {f"{WORKERS}.minReplicas": 4, f"{WORKERS}.maxReplicas": 4, "spec.scaling.metrics": [{"type": "Resource"}]},
        (
            "scaling.metrics need room to scale: set workers.minReplicas below workers.maxReplicas, or remove the "
            "metrics",
        ),
    ),
    "metrics as names": Case(
        {f"{WORKERS}.minReplicas": 1, f"{WORKERS}.maxReplicas": 8, "spec.scaling.metrics": ["cpu"]},
        ("spec.scaling.metrics[0] in body must be of type object",),
    ),
    "a delay before now": Case(
        {"spec.scaling.scaleUpDelaySeconds": -1}, ("spec.scaling.scaleUpDelaySeconds: Invalid value: -1",)
    ),
    "time to save below none": Case(
        {"spec.lifecycle.gracefulShutdownSeconds": -1}, ("gracefulShutdownSeconds: Invalid value: -1",)
    ),
    "a time to live below none": Case(
        {"spec.lifecycle.ttlSecondsAfterFinished": -5}, ("ttlSecondsAfterFinished: Invalid value: -5",)
    ),
    "a deadline with its unit": Case(
        {"spec.lifecycle.activeDeadlineSeconds": "1h"}, ("spec.lifecycle.activeDeadlineSeconds", "type integer")
    ),
    "a deadline beyond all time": Case(
        {"spec.lifecycle.activeDeadlineSeconds": 2**33}, ("activeDeadlineSeconds: Invalid value: 8589934592",)
    ),
    "suspension as a word": Case(
        {"spec.lifecycle.suspend": "yes"}, ("spec.lifecycle.suspend in body must be of type boolean",)
    ),
    "suspension where a Job has it": Case({"spec.suspend": True}, ('unknown field "spec.suspend"',)),
    "cleaning in small letters": Case(
        {"spec.lifecycle.cleanPods": "all"}, ('Unsupported value: "all": supported values: "Running", "All"',)
    ),
    "restartPolicy of a Pod": Case(
        {"spec.restartPolicy": "OnFailure"}, ("spec.restartPolicy in body must be of type object",)
    ),
    "no window": Case({"spec.restartPolicy.windowSeconds": 0}, ("spec.restartPolicy.windowSeconds: Invalid value: 0",)),
    "a wait above the default's longest": Case(
        {"spec.restartPolicy.backoff.initialSeconds": 400},
        ("initialSeconds (400) is above maxSeconds (300): lower initialSeconds",),
    ),
    "an exit code that no process has": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [256], "action": "Fail"}]},
        ("rules[0].exitCodes[0]: Invalid value: 256",),
    ),
    "a signal as an exit code": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [-9], "action": "Fail"}]},
        ("rules[0].exitCodes[0]: Invalid value: -9",),
    ),
    "the kubelet's word for a reason": Case(
        {"spec.restartPolicy.rules": [{"reasons": ["OOMKilled"], "action": "Ignore"}]},
        (
            "spec.restartPolicy.rules[0].reasons[0]",
            "OOMKilled is no reason of status.lastFailure.reason: write OutOfMemory for OOMKilled",
        ),
    ),
    "a sentence for a reason": Case(
        {"spec.restartPolicy.rules": [{"reasons": ["out of memory"], "action": "Ignore"}]},
        ("out of memory is not a reason as status.lastFailure.reason has it: write one word such as OutOfMemory",),
    ),
    "a rule that does nothing": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [1]}]}, ("rules[0].action: Required value",)
    ),
    "no port": Case(
        {"spec.rendezvous.endpoint": "etcd:0"}, ("endpoint etcd:0 has no port from 1 to 65535: write one such as 2379",)
    ),
    "a port that there is not": Case(
        {"spec.rendezvous.endpoint": "etcd:65536"}, ("endpoint etcd:65536 has no port from 1 to 65535",)
    ),
    "several endpoints": Case(
        {"spec.rendezvous.endpoint": "a:2379,b:2379"}, ("endpoint a:2379,b:2379 is not host:port",)
    ),
    "a backend in capitals": Case(
        {"spec.rendezvous.backend": "C10D"}, ('Unsupported value: "C10D": supported values: "etcd-v3"',)
    ),
    "an image with a space": Case(
        {"spec.rendezvous.etcd.image": "etcd :3.6"}, ("image etcd :3.6 has a space in it: write one such as",)
    ),
    "less than no CPU": Case(
        {"spec.rendezvous.etcd.resources.limits": {"cpu": "-1"}},
        ("-1 is not a quantity from 0 on: write one such as 500m, 2 or 1Gi",),
    ),
    "requests above the limits": Case(
        {"spec.rendezvous.etcd.resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}},
        ('requests of ["memory"] are above its limits: lower the requests or raise the limits',),
    ),
    "a directory that climbs": Case(
        {"spec.checkpoint.directory": "/a/../b"}, ("directory /a/../b is not an absolute path below /", "or ..")
    ),
    "a directory with an end": Case(
        {"spec.checkpoint.directory": "/a/"}, ("directory /a/ is not an absolute path", "without a / at its end")
    ),
    "a claim that cannot be": Case(
        {"spec.checkpoint.volume": {"persistentVolumeClaim": {"claimName": "My Claim"}}},
        ("claimName My Claim cannot be the name of a PersistentVolumeClaim: use a-z, 0-9, - and .",),
    ),
    "checkpoints in a ConfigMap": Case(
        {"spec.checkpoint.volume": {"configMap": {"name": "c"}}}, ('unknown field "spec.checkpoint.volume.configMap"',)
    ),
    "avoidance below none": Case(
        {"spec.scheduling.avoidNodesAfter": -1}, ("spec.scheduling.avoidNodesAfter: Invalid value: -1",)
    ),
    "a manager with a long name": Case(
        {"spec.managedBy": "a.b/" + "c" * 80}, ("spec.managedBy: Too long: may not be more than 63 bytes",)
    ),
    "a name in capitals": Case({"metadata.name": "Digits"}, ('metadata.name: Invalid value: "Digits"', "lower case")),
    "a generated name too long": Case(
        {"metadata.name": GONE, "metadata.generateName": "d" * 50},
        ("metadata.name has 55 characters: shorten it to 47",),
    ),
    "a label too long": Case(
        {"metadata.labels": {"a": "b" * 64}}, ("metadata.labels", "must be no more than 63 bytes")
    ),
    "no spec": Case({"spec": GONE}, ("spec: Required value",)),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_manifest_is_refused_with_field_value_and_remedy(empty: Cluster, case: Case) -> None:
    refusal = empty.refusal(changed(case.changes))
    for words in case.words:
        assert words in refusal
