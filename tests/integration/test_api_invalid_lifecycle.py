"""A wrong lifecycle, restart policy, manager or name is rejected with its field, its value and what to do about it."""

from __future__ import annotations

import pytest

from tests.integration.manifests import GONE, Case, Cluster, api, changed, empty

__all__ = ["api", "empty"]

BAD = {
    "restarts below none": Case(
        {"spec.restartPolicy.maxRestarts": -1}, ("spec.restartPolicy.maxRestarts", "greater than or equal to 0")
    ),
    "cleaning that is not there": Case(
        {"spec.lifecycle.cleanPods": "Some"}, ('supported values: "Running", "All", "None"',)
    ),
    "no time at all": Case(
        {"spec.lifecycle.activeDeadlineSeconds": 0},
        ("spec.lifecycle.activeDeadlineSeconds", "greater than or equal to 1"),
    ),
    "a deadline that another one forestalls": Case(
        {"spec.lifecycle.startupDeadlineSeconds": 90, "spec.lifecycle.activeDeadlineSeconds": 60},
        (
            "spec.lifecycle.startupDeadlineSeconds: Invalid value",
            "startupDeadlineSeconds (90) is above activeDeadlineSeconds (60), which ends the job earlier: lower it or "
            "remove it",
        ),
    ),
    "a rule that matches nothing": Case(
        {"spec.restartPolicy.rules": [{"action": "Fail"}]},
        (
            "spec.restartPolicy.rules[0]",
            "a rule without exitCodes or reasons matches nothing: set at least one of them",
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
            "maxRestarts (101) is above 100, the limit with windowSeconds",
            "lower maxRestarts or remove windowSeconds",
        ),
    ),
    "a manager without a domain": Case(
        {"spec.managedBy": "kueue"},
        ("managedBy kueue is not a domain-prefixed name: use one such as kueue.x-k8s.io/",),
    ),
    "two managers": Case(
        {"spec.managedBy": "a.b/c", "spec.lifecycle.managedBy": "a.b/d"},
        (
            "spec.managedBy",
            "managedBy is a.b/c, but lifecycle.managedBy is a.b/d: remove one of them",
        ),
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
            "OOMKilled is not used in status.lastFailure.reason: replace OOMKilled by OutOfMemory",
        ),
    ),
    "a sentence for a reason": Case(
        {"spec.restartPolicy.rules": [{"reasons": ["out of memory"], "action": "Ignore"}]},
        ("out of memory is not a reason as in status.lastFailure.reason: use one word, such as OutOfMemory",),
    ),
    "a rule that does nothing": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [1]}]}, ("rules[0].action: Required value",)
    ),
    "avoidance below none": Case(
        {"spec.scheduling.avoidNodesAfter": -1}, ("spec.scheduling.avoidNodesAfter: Invalid value: -1",)
    ),
    "a manager with a long name": Case(
        {"spec.managedBy": "a.b/" + "c" * 80}, ("spec.managedBy: Too long: may not be more than 63 bytes",)
    ),
    "a name too long for its pods": Case(
        {"metadata.name": "a" * 48},
        ("metadata.name has 48 characters: use at most 47, because names derived from it are limited to 63",),
    ),
    "a name that is no Service's": Case(
        {"metadata.name": "7b.chat"}, ("metadata.name 7b.chat cannot be part of a Service's name",)
    ),
    "a field that comes later": Case({"spec.inject": "auto"}, ('unknown field "spec.inject"',)),
    "a name in capitals": Case({"metadata.name": "Digits"}, ('metadata.name: Invalid value: "Digits"', "lower case")),
    "a generated name too long": Case(
        {"metadata.name": GONE, "metadata.generateName": "d" * 50},
        ("metadata.name has 55 characters: use at most 47",),
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
