"""A wrong `spec.workers` or `spec.scaling` is rejected with its field, its value and what to do about it."""

from __future__ import annotations

import pytest

from tests.integration.manifests import WORKERS, Case, Cluster, api, changed, empty

__all__ = ["api", "empty"]

INVALID = {
    "zero replicas": Case(
        {f"{WORKERS}.replicas": 0}, ("spec.workers.replicas: Invalid value: 0", "greater than or equal to 1")
    ),
    "too many replicas": Case(
        {f"{WORKERS}.replicas": 10_001}, ("spec.workers.replicas", "less than or equal to 10000")
    ),
    "replicas as text": Case({f"{WORKERS}.replicas": "4"}, ("spec.workers.replicas", "must be of type integer")),
    "replicas below the minimum": Case(
        {f"{WORKERS}.minReplicas": 5}, ("replicas (4) is below minReplicas (5): raise replicas or lower minReplicas",)
    ),
    "replicas above the maximum": Case(
        {f"{WORKERS}.maxReplicas": 3}, ("replicas (4) is above maxReplicas (3): lower replicas or raise maxReplicas",)
    ),
    "minimum above the maximum": Case(
        {f"{WORKERS}.minReplicas": 5, f"{WORKERS}.maxReplicas": 3},
        (
            "spec.workers.minReplicas: Invalid value: minReplicas (5) is above maxReplicas (3): lower minReplicas or "
            "raise maxReplicas",
        ),
    ),
    "unknown procsPerWorker": Case(
        {f"{WORKERS}.procsPerWorker": "many"},
        ("procsPerWorker many is invalid: use auto, cpu, gpu or a number from 1 to 1024",),
    ),
    "procsPerWorker in quotes": Case(
        {f"{WORKERS}.procsPerWorker": "2"}, ("procsPerWorker 2 is invalid", "without quotes")
    ),
    "zero procsPerWorker": Case({f"{WORKERS}.procsPerWorker": 0}, ("procsPerWorker 0 is invalid", "from 1 to 1024")),
    "misspelt field": Case({f"{WORKERS}.replica": 4}, ('unknown field "spec.workers.replica"',)),
    "allowed sizes and a step": Case(
        {f"{WORKERS}.allowedReplicas": [4], f"{WORKERS}.replicaStep": 2},
        ("allowedReplicas and replicaStep cannot be combined: remove one of them",),
    ),
    "allowed size out of bounds": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.allowedReplicas": [2, 8]},
        (
            "allowedReplicas [2, 8] must be between minReplicas and maxReplicas (2 to 4): change one of them; both "
            "bounds default to replicas",
        ),
    ),
    "replicas below every allowed size": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [8]},
        ("replicas (4) is below all of allowedReplicas [8]: raise replicas, or allow a smaller size",),
    ),
    "minimum that is no multiple of the step": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.replicaStep": 4},
        ("minReplicas (2; default: replicas) is not a multiple of replicaStep (4): change one of them",),
    ),
    "metrics without bounds": Case(
        {"spec.scaling.metrics": [{"type": "Resource"}]},
        ("scaling.metrics requires a range of sizes: set workers.minReplicas below workers.maxReplicas",),
    ),
    "fraction of a replica": Case({f"{WORKERS}.replicas": 2.5}, ("spec.workers.replicas", "must be of type int32")),
    "replicas beyond 32 bits": Case(
        {f"{WORKERS}.replicas": 2**40}, ("spec.workers.replicas: Invalid value: 1099511627776",)
    ),
    "zero minimum": Case(
        {f"{WORKERS}.minReplicas": 0}, ("spec.workers.minReplicas: Invalid value: 0", "or equal to 1")
    ),
    "no workers section": Case({"spec.workers": None}, ("spec.workers: Required value",)),
    "workers section as a list": Case({"spec.workers": []}, ("spec.workers in body must be of type object",)),
    "fractional procsPerWorker": Case(
        {f"{WORKERS}.procsPerWorker": 1.5}, ("spec.workers.procsPerWorker in body must be of type integer",)
    ),
    "too many processes per worker pod": Case(
        {f"{WORKERS}.procsPerWorker": 1025}, ("procsPerWorker 1025 is invalid", "from 1 to 1024")
    ),
    "duplicate allowed size": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [2, 2, 4]},
        ("spec.workers.allowedReplicas[1]: Duplicate value: 2",),
    ),
    "empty allowed sizes": Case(
        {f"{WORKERS}.allowedReplicas": []}, ("spec.workers.allowedReplicas", "should have at least 1 items")
    ),
    "zero step": Case({f"{WORKERS}.replicaStep": 0}, ("spec.workers.replicaStep: Invalid value: 0", "or equal to 1")),
    "step above the maximum": Case(
        {f"{WORKERS}.replicaStep": 8}, ("minReplicas (4; default: replicas) is not a multiple of replicaStep (8)",)
    ),
    "metrics with equal bounds": Case(
        {f"{WORKERS}.minReplicas": 4, f"{WORKERS}.maxReplicas": 4, "spec.scaling.metrics": [{"type": "Resource"}]},
        (
            "scaling.metrics requires a range of sizes: set workers.minReplicas below workers.maxReplicas, or remove "
            "the metrics",
        ),
    ),
    "metrics as names": Case(
        {f"{WORKERS}.minReplicas": 1, f"{WORKERS}.maxReplicas": 8, "spec.scaling.metrics": ["cpu"]},
        ("spec.scaling.metrics[0] in body must be of type object",),
    ),
    "negative delay": Case(
        {"spec.scaling.scaleUpDelaySeconds": -1}, ("spec.scaling.scaleUpDelaySeconds: Invalid value: -1",)
    ),
}


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_manifest_is_rejected_with_field_value_and_remedy(empty: Cluster, case: Case) -> None:
    message = empty.rejection(changed(case.changes))
    for words in case.words:
        assert words in message
