"""A wrong lifecycle, restart policy, manager or name is rejected with its field, its value and what to do about it."""

from __future__ import annotations

import pytest

from tests.integration.manifests import GONE, Case, Cluster, api, changed, empty

__all__ = ["api", "empty"]

INVALID = {
    "negative restarts": Case(
        {"spec.restartPolicy.maxRestarts": -1}, ("spec.restartPolicy.maxRestarts", "greater than or equal to 0")
    ),
    "unknown cleanup": Case({"spec.lifecycle.cleanPods": "Some"}, ('supported values: "Running", "All", "None"',)),
    "zero deadline": Case(
        {"spec.lifecycle.activeDeadlineSeconds": 0},
        ("spec.lifecycle.activeDeadlineSeconds", "greater than or equal to 1"),
    ),
    "startup deadline after the active deadline": Case(
        {"spec.lifecycle.startupDeadlineSeconds": 90, "spec.lifecycle.activeDeadlineSeconds": 60},
        (
            "spec.lifecycle.startupDeadlineSeconds: Invalid value",
            "startupDeadlineSeconds (90) is above activeDeadlineSeconds (60), which ends the job earlier: lower it or "
            "remove it",
        ),
    ),
    "rule without a match": Case(
        {"spec.restartPolicy.rules": [{"action": "Fail"}]},
        (
            "spec.restartPolicy.rules[0]",
            "a rule without exitCodes or reasons matches nothing: set at least one of them",
        ),
    ),
    "rule for exit code 0": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [0], "action": "Fail"}]},
        ("spec.restartPolicy.rules[0].exitCodes[0]", "or equal to 1"),
    ),
    "rule with an unknown action": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [1], "action": "Retry"}]},
        ('supported values: "Restart", "Ignore", "Fail"',),
    ),
    "initial wait above the maximum": Case(
        {"spec.restartPolicy.backoff": {"initialSeconds": 9, "maxSeconds": 3}},
        ("initialSeconds (9) is above maxSeconds (3): lower initialSeconds or raise maxSeconds",),
    ),
    "too many restarts for a window": Case(
        {"spec.restartPolicy": {"maxRestarts": 101, "windowSeconds": 60}},
        (
            "maxRestarts (101) is above 100, the limit with windowSeconds",
            "lower maxRestarts or remove windowSeconds",
        ),
    ),
    "manager without a domain": Case(
        {"spec.managedBy": "kueue"},
        ("managedBy kueue is not a domain-prefixed name: use one such as kueue.x-k8s.io/",),
    ),
    "two different managers": Case(
        {"spec.managedBy": "a.b/c", "spec.lifecycle.managedBy": "a.b/d"},
        (
            "spec.managedBy",
            "managedBy is a.b/c, but lifecycle.managedBy is a.b/d: remove one of them",
        ),
    ),
    "negative graceful shutdown time": Case(
        {"spec.lifecycle.gracefulShutdownSeconds": -1}, ("gracefulShutdownSeconds: Invalid value: -1",)
    ),
    "negative time to live": Case(
        {"spec.lifecycle.ttlSecondsAfterFinished": -5}, ("ttlSecondsAfterFinished: Invalid value: -5",)
    ),
    "deadline with a unit": Case(
        {"spec.lifecycle.activeDeadlineSeconds": "1h"}, ("spec.lifecycle.activeDeadlineSeconds", "type integer")
    ),
    "deadline beyond 32 bits": Case(
        {"spec.lifecycle.activeDeadlineSeconds": 2**33}, ("activeDeadlineSeconds: Invalid value: 8589934592",)
    ),
    "suspend as a word": Case(
        {"spec.lifecycle.suspend": "yes"}, ("spec.lifecycle.suspend in body must be of type boolean",)
    ),
    "suspend where a batch Job has it": Case({"spec.suspend": True}, ('unknown field "spec.suspend"',)),
    "cleanup in small letters": Case(
        {"spec.lifecycle.cleanPods": "all"}, ('Unsupported value: "all": supported values: "Running", "All"',)
    ),
    "restartPolicy of a Pod": Case(
        {"spec.restartPolicy": "OnFailure"}, ("spec.restartPolicy in body must be of type object",)
    ),
    "zero window": Case(
        {"spec.restartPolicy.windowSeconds": 0}, ("spec.restartPolicy.windowSeconds: Invalid value: 0",)
    ),
    "initial wait above the default maximum": Case(
        {"spec.restartPolicy.backoff.initialSeconds": 400},
        ("initialSeconds (400) is above maxSeconds (300): lower initialSeconds",),
    ),
    "exit code above 255": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [256], "action": "Fail"}]},
        ("rules[0].exitCodes[0]: Invalid value: 256",),
    ),
    "signal as an exit code": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [-9], "action": "Fail"}]},
        ("rules[0].exitCodes[0]: Invalid value: -9",),
    ),
    "reason as the kubelet names it": Case(
        {"spec.restartPolicy.rules": [{"reasons": ["OOMKilled"], "action": "Ignore"}]},
        (
            "spec.restartPolicy.rules[0].reasons[0]",
            "OOMKilled is not used in status.lastFailure.reason: replace OOMKilled by OutOfMemory",
        ),
    ),
    "reason with spaces": Case(
        {"spec.restartPolicy.rules": [{"reasons": ["out of memory"], "action": "Ignore"}]},
        ("out of memory is not a reason as in status.lastFailure.reason: use one word, such as OutOfMemory",),
    ),
    "rule without an action": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [1]}]}, ("rules[0].action: Required value",)
    ),
    "negative node avoidance": Case(
        {"spec.scheduling.avoidNodesAfter": -1}, ("spec.scheduling.avoidNodesAfter: Invalid value: -1",)
    ),
    "manager with a long name": Case(
        {"spec.managedBy": "a.b/" + "c" * 80}, ("spec.managedBy: Too long: may not be more than 63 bytes",)
    ),
    "name too long for its pods": Case(
        {"metadata.name": "a" * 48},
        ("metadata.name has 48 characters: use at most 47, because names derived from it are limited to 63",),
    ),
    "name that no Service can have": Case(
        {"metadata.name": "7b.chat"}, ("metadata.name 7b.chat cannot be part of a Service's name",)
    ),
    "unknown field": Case({"spec.inject": "auto"}, ('unknown field "spec.inject"',)),
    "name in capitals": Case({"metadata.name": "Digits"}, ('metadata.name: Invalid value: "Digits"', "lower case")),
    "generated name too long": Case(
        {"metadata.name": GONE, "metadata.generateName": "d" * 50},
        ("metadata.name has 55 characters: use at most 47",),
    ),
    "label too long": Case({"metadata.labels": {"a": "b" * 64}}, ("metadata.labels", "must be no more than 63 bytes")),
    "no spec": Case({"spec": GONE}, ("spec: Required value",)),
}


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_manifest_is_rejected_with_field_value_and_remedy(empty: Cluster, case: Case) -> None:
    message = empty.rejection(changed(case.changes))
    for words in case.words:
        assert words in message
