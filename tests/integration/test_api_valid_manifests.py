"""The API server accepts every valid manifest, the examples included."""

from __future__ import annotations

import pytest

from tests.integration.manifests import GONE, POD, TRAINER, WORKERS, Case, Cluster, api, empty

__all__ = ["api", "empty"]

VALID = {
    "only what is required": Case({f"{WORKERS}.replicas": GONE}),
    "elastic": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8}),
    "bounds without replicas": Case({f"{WORKERS}.replicas": GONE, f"{WORKERS}.minReplicas": 2}),
    "bounds and allowed sizes without replicas": Case(
        {
            f"{WORKERS}.replicas": GONE,
            f"{WORKERS}.minReplicas": 2,
            f"{WORKERS}.maxReplicas": 8,
            f"{WORKERS}.allowedReplicas": [2, 4, 8],
        }
    ),
    "bounds equal to replicas": Case({f"{WORKERS}.minReplicas": 4, f"{WORKERS}.maxReplicas": 4}),
    "processes as a number": Case({f"{WORKERS}.procsPerWorker": 8}),
    "one process per GPU": Case({f"{WORKERS}.procsPerWorker": "gpu"}),
    "another container as the trainer": Case({f"{WORKERS}.container": "trainer"}),
    "restartPolicy Never": Case({f"{POD}.restartPolicy": "Never"}),
    "unknown pod fields": Case({f"{POD}.aFieldOfTheFuture": {"deep": [1]}}),
    "volume of the template": Case({f"{POD}.volumes": [{"name": "data", "emptyDir": {}}]}),
    "null values, as generators write them": Case(
        {"spec.workers.template.metadata.creationTimestamp": None, f"{TRAINER}.env": None, "spec.checkpoint": None}
    ),
    "external etcd": Case({"spec.rendezvous": {"type": "External", "endpoint": "etcd.example.com:2379"}}),
    "external etcd with TLS": Case(
        {"spec.rendezvous": {"type": "External", "endpoint": "https://etcd.example.com:2379"}}
    ),
    "external etcd with credentials": Case(
        {"spec.rendezvous": {"type": "External", "endpoint": "https://[fd00::1]:2379", "secretName": "my.etcd-1"}}
    ),
    "external etcd with an IPv6 address": Case({"spec.rendezvous": {"type": "External", "endpoint": "[fd00::1]:2379"}}),
    "three etcd members": Case(
        {
            "spec.rendezvous": {
                "type": "Dedicated",
                "etcd": {"members": 3, "storage": {"size": "2Gi", "storageClassName": "fast"}},
            }
        }
    ),
    "three etcd members with the default storage": Case(
        {"spec.rendezvous": {"type": "Dedicated", "etcd": {"members": 3, "storage": {}}}}
    ),
    "managed etcd with resources": Case(
        {
            "spec.rendezvous": {
                "type": "Dedicated",
                "etcd": {"image": "etcd:3.6", "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}},
            }
        }
    ),
    "checkpoints in a PersistentVolumeClaim": Case(
        {"spec.checkpoint.volume.persistentVolumeClaim.claimName": "checkpoints"}
    ),
    "checkpoints in a volume of another kind": Case(
        {"spec.checkpoint.volume": {"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}}
    ),
    "checkpoints in a volume of the template": Case({"spec.checkpoint.directory": "/data/run"}),
    "its own etcd, whatever the default": Case({"spec.rendezvous.type": "Dedicated"}),
    "c10d": Case({"spec.rendezvous.backend": "c10d"}),
    "etcd-v2": Case({"spec.rendezvous": {"type": "External", "backend": "etcd-v2", "endpoint": "etcd:2379"}}),
    "allowed sizes": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [2, 4, 8]}
    ),
    "whole replicas": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.replicaSize": 2}),
    "an autoscaler": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, "spec.scaling.metrics": [{"type": "Resource"}]}
    ),
    "empty metrics with a behavior": Case({"spec.scaling": {"metrics": [], "behavior": {"scaleDown": {}}}}),
    "failure rules and backoff": Case(
        {
            "spec.failurePolicy": {
                "maxRestarts": 100,
                "windowSeconds": 3600,
                "rules": [{"exitCodes": [42, 143], "action": "Fail"}, {"reasons": ["OutOfMemory"], "action": "Ignore"}],
                "backoff": {"initialSeconds": 0, "maxSeconds": 0},
            }
        }
    ),
    "no restarts": Case({"spec.failurePolicy.maxRestarts": 0}),
    "cleanup of all pods": Case({"spec.lifecycle.cleanPods": "All"}),
    "suspended from the start": Case({"spec.suspend": True}),
    "all deadlines": Case(
        {
            "spec.lifecycle.startupDeadlineSeconds": 60,
            "spec.lifecycle.activeDeadlineSeconds": 60,
            "spec.lifecycle.ttlSecondsAfterFinished": 0,
            "spec.lifecycle.gracefulShutdownSeconds": 0,
        }
    ),
    "another manager": Case({"spec.managedBy": "kueue.x-k8s.io/multikueue"}),
    "longest name": Case({"metadata.name": "a" * 47}),
}


@pytest.mark.parametrize("case", VALID.values(), ids=VALID.keys())
def test_a_valid_manifest_is_accepted(empty: Cluster, case: Case) -> None:
    empty.judges(case)
